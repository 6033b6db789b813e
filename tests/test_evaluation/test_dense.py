"""Images of more objects than COCO's 100, and limits of detectors."""

import json

import numpy as np
import pytest

pytest.importorskip('mmdet')
from mmengine.logging import MMLogger
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmattn.evaluation import coco
from mmattn.models.limits import detection_limits, reached_limits


@pytest.fixture(params=['faster_coco_eval', 'pycocotools'])
def case(request, tmp_path, monkeypatch):
    """Images of 150 and of 10 objects; all but the last 30 and 2 are found."""
    if request.param == 'pycocotools':
        monkeypatch.setattr(coco, 'COCOeval', COCOeval)
        monkeypatch.setattr(coco, 'COCO', COCO)
    annotations, results = [], []
    for image, count in enumerate((150, 10), 1):
        boxes = [[i % 15 * 20, i // 15 * 20, 10, 10] for i in range(count)]
        for box in boxes:
            entry = dict(id=len(annotations) + 1, image_id=image, bbox=box, area=100)
            annotations.append(entry | dict(category_id=image))
        found = np.array(boxes[: -count // 5], np.float32)
        found[:, 2:] += found[:, :2]
        scores = np.full(len(found), 0.9, np.float32)
        result = dict(img_id=image, bboxes=found, scores=scores)
        results.append(({}, result | dict(labels=np.full(len(found), image - 1))))
    document = dict(
        images=[dict(id=i, width=300, height=200, file_name=f'{i}') for i in (1, 2)],
        annotations=annotations,
        categories=[dict(id=1, name='a'), dict(id=2, name='b')],
    )
    path = tmp_path / 'truth.json'
    path.write_text(json.dumps(document))
    return path, results


def evaluate(case, limits=(), **options) -> dict:
    path, results = case
    metric = coco.CocoMetric(str(path), classwise=True, **options)
    metric.dataset_meta = dict(classes=('a', 'b'))
    metric.limits = dict(limits)
    return metric.compute_metrics(results)


def test_ap_counts_as_many_detections_as_an_image_has_objects(case):
    """Four fifths are found without an error; COCO counts 100 in an image."""
    figures = evaluate(case)
    for item in ('bbox_mAP', 'bbox_mAP_50', 'bbox_mAP_s', 'bbox_a_mAP', 'bbox_b_mAP'):
        assert figures[item] == pytest.approx(0.8, abs=0.01)  # of 101 recalls
    assert figures['bbox_mAP_m'] == -1 and figures['count_error'] == 0.2
    assert evaluate(case, max_dets=100)['bbox_a_mAP'] == pytest.approx(2 / 3, abs=0.01)
    assert evaluate(case, max_dets=75)['bbox_a_mAP'] == pytest.approx(0.5, abs=0.01)


def test_masks_beyond_eight_bits(tmp_path):
    """pycocotools counts the masks of an image in 8 bits where it takes their areas."""
    side, annotations = 20, []
    mask = coco_mask.encode(np.asfortranarray(np.ones((side, side), np.uint8)))
    mask['counts'] = mask['counts'].decode()
    for number in range(300):
        entry = dict(id=number, image_id=1, category_id=1, area=400, iscrowd=0)
        annotations.append(entry | dict(bbox=[0, 0, side, side], segmentation=mask))
    document = dict(
        images=[dict(id=1, width=side, height=side, file_name='1')],
        annotations=annotations,
        categories=[dict(id=1, name='a')],
    )
    path = tmp_path / 'truth.json'
    path.write_text(json.dumps(document))
    found = dict(
        img_id=1,
        bboxes=np.tile(np.array([[0, 0, side, side]], np.float32), (300, 1)),
        scores=np.linspace(0.9, 0.5, 300),
        labels=np.zeros(300, int),
        masks=[mask] * 300,
    )
    metric = coco.CocoMetric(str(path), metric=['bbox', 'segm'])
    metric.dataset_meta = dict(classes=('a',))
    assert metric.compute_metrics([({}, found)])['segm_mAP'] == pytest.approx(1)


def test_the_score_that_counts_best_is_named(case, capsys):
    """With 2 and 30 false detections of a score of 0.4, counts are right at 0.3."""
    MMLogger.get_instance(str(case[0]))
    for _, result in case[1]:
        false = len(result['labels']) // 4
        result['scores'] = np.concatenate([result['scores'], np.full(false, 0.4)])
        for key in ('bboxes', 'labels'):
            result[key] = np.concatenate([result[key], result[key][:false]])
    assert evaluate(case)['count_error'] == 0
    assert 'count error' not in capsys.readouterr().out
    for _, result in case[1]:
        result['scores'][:10] = 0.35
    assert evaluate(case, score_thr=0.4)['count_error'] == 0.125
    told = capsys.readouterr().out
    assert 'error 0.125 at a score of 0.4; the lowest is 0.0 at 0.05: mmattn' in told
    assert 'mmattn predict --score 0.05' in told


def test_limits_are_told_with_what_lifts_them(case, capsys):
    MMLogger.get_instance(str(case[0]))  # prints to the output of this test
    evaluate(case, {'model.test_cfg.rcnn.max_per_img': 120}, max_dets=149)
    out = capsys.readouterr().out
    assert '1 of 2 images reach the limit of 120 objects an image; one has 150' in out
    assert '--cfg-options model.test_cfg.rcnn.max_per_img=300 lifts it' in out
    assert 'AP counts the best 149 detections' in out and 'max_dets=150 counts' in out
    evaluate(case, {'model.test_cfg.rcnn.max_per_img': 300})
    out = capsys.readouterr().out
    assert 'reach the limit' not in out and 'AP counts the best 150' in out


TWO_STAGE = dict(
    test_cfg=dict(rcnn=dict(max_per_img=100), rpn=dict(max_per_img=300)), backbone={}
)


def test_limits_of_configs():
    assert detection_limits(TWO_STAGE) == {
        'model.test_cfg.rcnn.max_per_img': 100,
        'model.test_cfg.rpn.max_per_img': 300,
    }
    dense = dict(num_queries=900, test_cfg=dict(max_per_img=300))
    assert detection_limits(dense) == {
        'model.test_cfg.max_per_img': 300,
        'model.num_queries': 900,
    }
    assert detection_limits(dict(test_cfg=None)) == detection_limits(None) == {}


@pytest.mark.parametrize(
    'found, sure, objects, said',
    [
        ([99], [99], None, []),
        ([100], [49], None, []),  # a young model: most of its scores are low
        ([100], [50], None, ['rcnn.max_per_img=200']),
        ([99], [101], None, ['rpn.max_per_img=606']),
        ([9, 9], [9, 9], [101, 5], ['rcnn.max_per_img=202']),
        ([9], [9], [301], ['rcnn.max_per_img=602', 'rpn.max_per_img=1806']),
    ],
)
def test_when_a_limit_is_reached(found, sure, objects, said):
    notes = reached_limits(detection_limits(TWO_STAGE), found, sure, objects)
    assert len(notes) == len(said)
    assert all(
        f'{each} lifts it' in note for each, note in zip(said, notes, strict=True)
    )
