"""Graphs of one-stage detectors equal mmdet's predictions."""

import pytest

from mmattn.compat import activate

activate()
pytest.importorskip('mmdet')

from mmdet.models.dense_heads import FCOSHead  # noqa: E402
from small_detectors import (  # noqa: E402
    EXPORTS,
    IMAGES,
    check_equals_mmdet,
    check_exported,
    check_few_and_none,
    detector,
)

from mmattn.export.errors import ExportError  # noqa: E402
from mmattn.export.graphs.dense_detector import DenseDetector  # noqa: E402

NAMES = 'retinanet_fpn', 'atss_fpn', 'gfl_fpn'


@pytest.mark.parametrize('name', NAMES)
def test_detections_equal_mmdet(name):
    found = check_equals_mmdet(DenseDetector, detector(name), *IMAGES)
    assert min(found) > 3, 'the images have few objects'


def test_few_and_no_detections():
    model = detector('retinanet_fpn')
    check_few_and_none(DenseDetector, model, model.bbox_head.test_cfg)


def test_boxes_may_leave_the_image_and_small_ones_are_dropped():
    model = detector('retinanet_fpn')
    model.bbox_head.test_cfg.min_bbox_size = 24
    assert min(check_equals_mmdet(DenseDetector, model, *IMAGES)) > 0
    model.bbox_head.test_cfg.min_bbox_size = -1
    model.bbox_head.bbox_coder.clip_border = False
    assert min(check_equals_mmdet(DenseDetector, model, *IMAGES)) > 0


def test_softmax_scores_and_class_agnostic_nms():
    softmax = dict(_delete_=True, type='CrossEntropyLoss', use_sigmoid=False)
    model = detector('retinanet_fpn', bbox_head=dict(loss_cls=softmax))
    model.bbox_head.test_cfg.nms.class_agnostic = True
    assert min(check_equals_mmdet(DenseDetector, model, *IMAGES)) > 0


def test_other_heads_and_settings_are_refused():
    model = detector('retinanet_fpn')
    model.bbox_head.test_cfg.nms_pre = 0
    with pytest.raises(ExportError, match='`nms_pre` of RetinaHead .* got 0'):
        DenseDetector(model)
    model.bbox_head.test_cfg.nms = dict(type='soft_nms', iou_threshold=0.5)
    model.bbox_head.test_cfg.nms_pre = 10
    with pytest.raises(ExportError, match="RetinaHead .* got 'soft_nms'"):
        DenseDetector(model)
    model.bbox_head = FCOSHead(3, 32)
    with pytest.raises(ExportError, match='FCOSHead cannot be exported'):
        DenseDetector(model)


@pytest.mark.slow
@pytest.mark.parametrize('name, run', [*zip(NAMES, [*EXPORTS, 'onnx'], strict=True)])
def test_exports_equal_mmdet(name, run):
    model = detector(name)
    check_exported(run, DenseDetector, model, model.bbox_head.test_cfg)
