"""Graphs of one-stage and two-stage detectors equal mmdet's predictions."""

import pytest
import torch

from mmattn.compat import activate

activate()
pytest.importorskip('mmdet')

from mmdet.models.dense_heads import FCOSHead  # noqa: E402
from small_detectors import (  # noqa: E402
    IMAGES,
    check_equals_mmdet,
    check_exported,
    check_few_and_none,
    detector,
    image_samples,
)

from mmattn.export.errors import ExportError  # noqa: E402
from mmattn.export.graphs import graph_of  # noqa: E402
from mmattn.export.graphs.dense_detector import DenseDetector  # noqa: E402
from mmattn.export.graphs.roi_detector import RoIDetector  # noqa: E402
from mmattn.export.graphs.roi_pool import pool  # noqa: E402

TWO_STAGES = 'mask_rcnn_fpn', 'cascade_mask_rcnn_fpn'
RUNS = {  # how each is exported
    'retinanet_fpn': 'torch.export',
    'atss_fpn': 'onnx',
    'gfl_fpn': 'onnx',
    'mask_rcnn_fpn': 'torch.export',
    'cascade_mask_rcnn_fpn': 'onnx',
}


def settings_of(model):
    """Return the settings of a detector that have its `score_thr`."""
    return getattr(model, 'roi_head', getattr(model, 'bbox_head', None)).test_cfg


@pytest.mark.parametrize('name', RUNS)
def test_detections_equal_mmdet(name):
    found = check_equals_mmdet(graph_of, detector(name), *IMAGES)
    assert min(found) > 3, 'the images have few objects'


@pytest.mark.parametrize('name', ['retinanet_fpn', 'mask_rcnn_fpn'])
def test_few_and_no_detections(name):
    model = detector(name)
    check_few_and_none(graph_of, model, settings_of(model))


@pytest.mark.slow
@pytest.mark.parametrize('name, run', RUNS.items())
def test_exports_equal_mmdet(name, run):
    model = detector(name)
    check_exported(run, graph_of, model, settings_of(model))


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


def test_other_one_stage_heads_and_settings_are_refused():
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


def test_faster_rcnn_has_no_masks():
    model = detector('mask_rcnn_fpn')
    assert graph_of(model).metadata == dict(mask_threshold=0.5)
    model.roi_head.mask_head = None
    assert RoIDetector(model).output_names == ('dets', 'labels')
    assert min(check_equals_mmdet(RoIDetector, model, *IMAGES)) > 0


def test_no_proposals():
    model = detector('mask_rcnn_fpn')
    model.rpn_head.test_cfg.min_bbox_size = 1000
    assert check_equals_mmdet(RoIDetector, model, *IMAGES) == [0, 0]


@torch.no_grad()
def test_proposals_of_levels_do_not_suppress_each_other():
    model = detector('mask_rcnn_fpn')
    model.rpn_head.test_cfg.nms.iou_threshold = 0.3
    features = model.extract_feat(IMAGES[0])
    found = RoIDetector(model)._proposals(features, IMAGES[1].unbind())
    expected = model.rpn_head.predict(features, image_samples(*IMAGES), rescale=False)
    for proposals, each in zip(found, expected, strict=True):
        dets = torch.cat([each.bboxes, each.scores[:, None]], 1)
        torch.testing.assert_close(proposals[: len(dets)], dets)
        assert (proposals[len(dets) :] == -1).all()


@pytest.mark.parametrize('name', TWO_STAGES)
def test_heads_that_ignore_classes(name):
    model = detector(name)
    box_heads, mask_heads = model.roi_head.bbox_head, model.roi_head.mask_head
    single = not isinstance(box_heads, torch.nn.ModuleList)
    for head in [box_heads] if single else box_heads:
        head.reg_class_agnostic = True
        head.fc_reg = torch.nn.Linear(head.fc_reg.in_features, 4)
    for head in [mask_heads] if single else mask_heads:
        head.class_agnostic = True
        head.conv_logits = torch.nn.Conv2d(head.conv_logits.in_channels, 1, 1)
    assert min(check_equals_mmdet(RoIDetector, model, *IMAGES)) > 0


def test_regions_at_the_bounds_of_levels():
    """Squares of 112, 224 and 448 pixels belong to the coarser level."""
    extractor = detector('mask_rcnn_fpn').roi_head.bbox_roi_extractor
    sides = torch.tensor([0, 111.99, 112, 223.99, 224, 447.9, 448, 900])
    boxes = torch.stack([sides * 0, sides * 0, sides, sides], 1)
    features = [torch.full((1, 1, 256 >> i, 256 >> i), float(i)) for i in range(4)]
    extractor.out_channels = 1
    regions = torch.cat([boxes[:, :1], boxes], 1)
    levels = pool(extractor, features, boxes[None])
    assert levels.amax((1, 2, 3)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(levels, extractor(features, regions))


def refused(message: str, model):
    with pytest.raises(ExportError, match=message):
        RoIDetector(model)


def test_other_heads_and_settings_are_refused():
    model = detector('mask_rcnn_fpn')
    head = model.roi_head
    head.test_cfg.nms.max_num = 5
    refused(r"StandardRoIHead: \['max_num'\] of NMS", model)
    head.test_cfg.nms = dict(type='soft_nms', iou_threshold=0.5)
    refused("StandardRoIHead .* got 'soft_nms'", model)
    model.rpn_head.test_cfg.nms = None
    refused('RPNHead .* got None', model)
    head.mask_head.upsample_method = 'carafe'
    refused('carafe', model)
    head.mask_head.__class__ = type('GridHead', (torch.nn.Module,), {})
    refused('GridHead cannot be exported', model)
    head.bbox_head.with_reg = False
    refused('with_reg=False', model)
    head.bbox_head.loss_cls.custom_cls_channels = True
    refused('CrossEntropyLoss has scores', model)
    head.bbox_head.bbox_coder.use_box_type = True
    refused('`use_box_type` cannot be exported', model)
    head.bbox_roi_extractor.roi_layers[0].pool_mode = 'max'
    refused("got 'max'", model)
    head.bbox_roi_extractor.roi_layers[0] = torch.nn.Identity()
    refused('got Identity', model)
    head.bbox_roi_extractor = torch.nn.Identity()
    refused('Identity cannot be exported', model)
    head.shared_head = torch.nn.Identity()
    refused('`shared_head`', model)
    model.rpn_head = torch.nn.Identity()
    refused('Identity cannot be exported; accepted are RPNHead', model)
