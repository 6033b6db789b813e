"""Our COCO metric beside mmdet's with pycocotools, and confusion counted by hand."""

import json

import numpy as np
import pytest

pytest.importorskip('mmdet')
from mmdet.evaluation import CocoMetric as Peer
from mmdet.evaluation.metrics import coco_metric
from mmengine.logging import MMLogger
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmattn.errors import UserError
from mmattn.evaluation import coco

NAMES = ('cat', 'dog', 'no object')
IDS = (3, 1, 7)


def rle(box):
    mask = np.zeros((80, 100), np.uint8, order='F')
    x1, y1, x2, y2 = np.round(box).astype(int)
    mask[y1:y2, x1:x2] = 1
    return coco_masks.encode(mask)


@pytest.fixture(scope='module')
def case(tmp_path_factory):
    """Objects and detections of 12 images, some empty, with a crowd."""
    rng = np.random.default_rng(0)
    annotations, results = [], []
    for image in range(12):
        count = image % 4
        corner = rng.uniform(0, 40, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(5, 39, (count, 2))], 1)
        labels = rng.integers(0, 2, count)
        for box, label in zip(boxes, labels, strict=True):
            mask = rle(box)
            entry = dict(id=len(annotations) + 1, image_id=image)
            entry |= dict(category_id=IDS[label], iscrowd=int(len(annotations) == 4))
            entry |= dict(bbox=[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()])
            entry |= dict(segmentation=mask | dict(counts=mask['counts'].decode()))
            annotations.append(entry | dict(area=float(coco_masks.area(mask))))
        found = np.repeat(boxes, 3, 0) + rng.normal(0, 2, (3 * count, 4))
        found = np.abs(found).clip(0, 79)
        result = dict(
            img_id=image,
            bboxes=found.astype(np.float32),
            scores=rng.uniform(0, 1, 3 * count).astype(np.float32),
            labels=np.where(rng.random(3 * count) < 0.8, labels.repeat(3), 1),
            masks=[rle(box) for box in found],
        )
        results.append(({}, result))
    document = dict(
        images=[dict(id=i, width=100, height=80, file_name=f'{i}') for i in range(12)],
        annotations=annotations,
        categories=[dict(id=i, name=n) for i, n in zip(IDS, NAMES, strict=True)],
    )
    path = tmp_path_factory.mktemp('coco') / 'truth.json'
    path.write_text(json.dumps(document))
    return path, results


def build(kind, path, **kwargs):
    metric = kind(str(path), metric=['bbox', 'segm'], **kwargs)
    metric.dataset_meta = dict(classes=NAMES)
    return metric


class Recorded(COCOeval):
    """Keep the evaluations of mmdet's metric."""

    kept = []

    def summarize(self):
        super().summarize()
        self.kept.append(self)


def use(package, monkeypatch):
    if package == 'pycocotools':
        monkeypatch.setattr(coco, 'COCOeval', COCOeval)
        monkeypatch.setattr(coco, 'COCO', COCO)
    else:
        pytest.importorskip(package)
    assert coco.COCOeval.__module__.startswith(package)


PACKAGES = pytest.mark.parametrize('package', ['faster_coco_eval', 'pycocotools'])


@PACKAGES
def test_no_detection_is_an_ap_of_zero(case, package, monkeypatch, capsys):
    use(package, monkeypatch)
    path, results = case
    empty = [
        ({}, {k: v if k == 'img_id' else v[:0] for k, v in result.items()})
        for _, result in results
    ]
    MMLogger.get_instance(package)  # prints to the output of this test
    metrics = build(coco.CocoMetric, path).compute_metrics(empty)
    large = {'bbox_mAP_l': -1, 'segm_mAP_l': -1}  # there are no such objects
    large['count_error'] = 1
    assert len(metrics) == 13 and metrics == dict.fromkeys(metrics, 0) | large
    assert 'The data set has no detection' in capsys.readouterr().out


def test_images_without_objects_have_no_count_error(case):
    path, results = case
    metrics = build(coco.CocoMetric, path).compute_metrics(results[::4])
    assert len(metrics) == 12 and not any(np.isnan([*metrics.values()]))


@PACKAGES
def test_figures_are_those_of_pycocotools(case, package, monkeypatch):
    use(package, monkeypatch)
    path, results = case
    thresholds = dict(iou_thrs=np.array([0.5, 0.6, 0.75]))
    ours = build(coco.CocoMetric, path, **thresholds)
    theirs = build(Peer, path, **thresholds)
    seen = []
    evaluate = coco.CocoMetric._evaluate

    def kept(*args):
        seen.append(evaluate(*args))
        return seen[-1]

    monkeypatch.setattr(coco.CocoMetric, '_evaluate', kept)
    monkeypatch.setattr(coco_metric, 'COCOeval', Recorded)
    monkeypatch.setattr(Recorded, 'kept', [])
    figures = ours.compute_metrics(results)
    assert figures.pop('count_error') > 0
    assert figures == theirs.compute_metrics(results)
    assert len(seen) == len(Recorded.kept) == 2
    for mine, peer in zip(seen, Recorded.kept, strict=True):
        np.testing.assert_allclose(mine.stats[:12], peer.stats, rtol=0, atol=1e-12)
        # COCOeval sorts classes by their ids; ours are in the order of the file.
        precision = peer.eval['precision'][:, :, np.argsort(np.argsort(IDS))]
        np.testing.assert_allclose(mine.eval['precision'], precision, atol=1e-12)
    assert 0.1 < seen[0].stats[0] < 0.9 and seen[0].stats[0] != seen[1].stats[0]


def test_classes_have_figures_and_the_mean_is_the_metric(case):
    path, results = case
    metric = build(coco.CocoMetric, path, classwise=True)
    figures = metric.compute_metrics(results)
    for kind in ('bbox', 'segm'):
        rows = metric.details[kind]['classes']
        assert list(rows) == list(NAMES)
        assert np.isnan(rows['no object']['mAP'])
        for item in ('mAP', 'mAP_50', 'mAP_75'):
            mean = np.mean([rows['cat'][item], rows['dog'][item]])
            assert figures[f'{kind}_{item}'] == pytest.approx(mean, abs=6e-4)
        assert figures[f'{kind}_cat_mAP'] == round(rows['cat']['mAP'], 3)
        curve = metric.details[kind]['precision']
        assert curve[:, 0].mean() == pytest.approx(rows['cat']['mAP_50'])


def rename(content: dict, kind: str, new) -> None:
    """Replace the ids of images, annotations or categories."""
    for entry in content[kind]:
        entry['id'] = new(entry['id'])
    key = {'images': 'image_id', 'categories': 'category_id'}.get(kind)
    for entry in content['annotations'] if key else ():
        entry[key] = new(entry[key])


IDS_OF_OTHERS = {
    'from-0': ('annotations', lambda i: i - 1),
    'negative': ('annotations', lambda i: -i),
    'text': ('annotations', str),
    'repeated': ('annotations', lambda i: 7),
    'images': ('images', lambda i: f'a{i}'),
    'categories': ('categories', str),
}


@pytest.mark.parametrize(('kind', 'new'), IDS_OF_OTHERS.values(), ids=IDS_OF_OTHERS)
@PACKAGES
def test_ids_change_no_figure(case, kind, new, package, tmp_path, monkeypatch):
    use(package, monkeypatch)

    def figures(path, results) -> str:
        metric = build(coco.CocoMetric, path, classwise=True)
        return f'{metric.compute_metrics(results)} {metric.confusion}'

    path, results = case
    expected = figures(path, results)
    content = json.loads(path.read_text())
    rename(content, kind, new)
    path = tmp_path / 'renamed.json'
    path.write_text(json.dumps(content))
    if kind == 'images':
        results = [
            (r, found | dict(img_id=new(found['img_id']))) for r, found in results
        ]
    assert figures(path, results) == expected


def test_masks_are_required_where_they_are_evaluated(case, tmp_path):
    content = json.loads(case[0].read_text())
    del content['annotations'][3]['segmentation']
    path = tmp_path / 'truth.json'
    path.write_text(json.dumps(content))
    assert build(Peer, path) and coco.CocoMetric(str(path))
    with pytest.raises(UserError, match=r'truth.json: annotation 4 .* has no outline'):
        build(coco.CocoMetric, path)


def test_confusion_counts_each_object_once(tmp_path):
    square = [10, 10, 20, 20]  # x, y, width, height
    document = dict(
        images=[dict(id=5, width=100, height=80, file_name='5.png')],
        annotations=[
            dict(id=i + 1, image_id=5, category_id=c, bbox=b, area=400, iscrowd=i // 2)
            for i, (c, b) in enumerate(
                [(3, square), (1, [60, 10, 20, 20]), (3, [0, 50, 9, 9])]
            )
        ],
        categories=[dict(id=i, name=n) for i, n in zip(IDS, NAMES, strict=True)],
    )
    path = tmp_path / 'truth.json'
    path.write_text(json.dumps(document))
    found = np.array(
        [[10, 10, 30, 30], [11, 10, 31, 30], [0, 50, 9, 59], [60, 10, 80, 30]]
    )
    result = dict(
        img_id=5,
        bboxes=found.astype(np.float32),
        scores=np.array([0.8, 0.9, 0.7, 0.2], np.float32),
        labels=np.array([0, 1, 0, 1]),
    )
    metric = coco.CocoMetric(str(path))
    metric.dataset_meta = dict(classes=NAMES)
    metric.compute_metrics([({}, result)])
    expected = np.zeros((4, 4), int)
    expected[0, 1] = 1  # the best detection calls the cat a dog
    expected[3, 0] = 2  # the second one of it, and one of nothing
    expected[1, 3] = 1  # the dog's score is too low
    np.testing.assert_array_equal(metric.confusion, expected)
