"""Metrics of exported files, beside mmdet's and mmseg's."""

import json

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmseg.evaluation import IoUMetric
from PIL import Image
from pycocotools import mask as coco_masks

from mmattn.export.metadata import Metadata
from mmattn.results import Detections, Segmentation
from tools.analysis import evaluate_export as tool

CLASSES = ['dog', 'cat']
IDS = {'cat': 3, 'dog': 8}
SIZE = (40, 50)


class FakeRunner:
    """Return prepared results by the name of the image."""

    def __init__(self, task, results, outputs=(), classes=CLASSES):
        self.metadata = Metadata(task, [], list(outputs), [1, 1], classes=classes)
        self.results = results

    def __call__(self, path):
        return self.results[path.stem]


def box_mask(x1, y1, x2, y2):
    mask = np.zeros(SIZE, bool)
    mask[y1:y2, x1:x2] = True
    return mask


@pytest.fixture
def coco(tmp_path):
    """Write annotations, and return their path and imprecise detections."""
    rng = np.random.default_rng(0)
    images, annotations, results = [], [], {}
    for image in range(6):
        images.append(dict(id=image + 5, file_name=f'{image}.png', height=40, width=50))
        found = []
        for _ in range(4):
            x, y, w, h = (int(i) for i in rng.integers(4, 20, 4))
            name = CLASSES[rng.integers(2)]
            encoded = coco_masks.encode(np.asfortranarray(box_mask(x, y, x + w, y + h)))
            encoded['counts'] = encoded['counts'].decode()
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=image + 5,
                    category_id=IDS[name],
                    bbox=[x, y, w, h],
                    area=w * h,
                    iscrowd=0,
                    segmentation=encoded,
                )
            )
            moved = rng.integers(-2, 3, 4)
            box = np.array([x, y, x + w, y + h]) + moved
            found.append((box, rng.random(), CLASSES.index(name), box_mask(*(box + 1))))
        boxes, scores, labels, masks = (np.array(x) for x in zip(*found, strict=True))
        names = [CLASSES[i] for i in labels]
        boxes = boxes.astype(np.float32)
        results[str(image)] = Detections(boxes, scores, labels, names, masks)
    categories = [dict(id=key, name=name) for name, key in IDS.items()]
    path = tmp_path / 'truth.json'
    content = dict(images=images, annotations=annotations, categories=categories)
    path.write_text(json.dumps(content))
    return path, results


def test_precision_is_that_of_mmdet(coco, tmp_path):
    path, results = coco
    runner = FakeRunner('detection', results, ['dets', 'labels', 'masks'])
    found = tool.evaluate_detector(runner, path, tmp_path)
    metric = CocoMetric(str(path), ['bbox', 'segm'])
    metric.dataset_meta = dict(classes=CLASSES)
    # mmdet takes the categories in the order of the file.
    order = [list(IDS).index(name) for name in CLASSES]
    for name, each in results.items():
        predicted = dict(
            bboxes=torch.from_numpy(each.boxes),
            scores=torch.from_numpy(each.scores),
            labels=torch.tensor([order[i] for i in each.labels]),
            masks=torch.from_numpy(each.masks),
        )
        sample = dict(img_id=int(name) + 5, ori_shape=SIZE, pred_instances=predicted)
        metric.process({}, [sample])
    expected = metric.evaluate(len(results))
    assert 0.1 < found['segm_mAP'] < found['bbox_mAP'] < 0.95
    for name, value in found.items():
        assert value == pytest.approx(expected[f'coco/{name}'], abs=6e-4)


def test_other_classes_are_refused(coco, tmp_path):
    runner = FakeRunner('detection', coco[1], classes=['dog', 'cow'])
    with pytest.raises(ValueError, match=r"got \['cat', 'dog'\]"):
        tool.evaluate_detector(runner, coco[0], tmp_path)


@pytest.mark.parametrize('reduce_zero_label', [False, True])
def test_iou_is_that_of_mmseg(tmp_path, reduce_zero_label):
    rng = np.random.default_rng(0)
    classes = ['a', 'b', 'c', 'never']
    metric = IoUMetric(iou_metrics=['mIoU'])
    metric.dataset_meta = dict(classes=classes)
    (tmp_path / 'images').mkdir()
    (tmp_path / 'labels').mkdir()
    results = {}
    for name in '01':
        (tmp_path / 'images' / f'{name}.jpg').touch()
        labels = rng.integers(0, 3 + reduce_zero_label, SIZE).astype(np.uint8)
        labels[:5] = 255
        Image.fromarray(labels).save(tmp_path / 'labels' / f'{name}.png')
        if reduce_zero_label:
            labels = np.where(labels == 255, 255, labels - 1).astype(np.uint8)
        predicted = np.where(rng.random(SIZE) < 0.6, labels % 3, 1).astype(np.int64)
        results[name] = Segmentation(predicted)
        sample = {
            key: dict(data=torch.from_numpy(value.astype(np.int64))[None])
            for key, value in (('gt_sem_seg', labels), ('pred_sem_seg', predicted))
        }
        metric.process({}, [sample])
    expected = metric.evaluate(2)
    runner = FakeRunner('segmentation', results, classes=classes)
    folders = tmp_path / 'labels', tmp_path / 'images'
    found = tool.evaluate_segmentor(runner, *folders, reduce_zero_label)
    for name, value in found.items():
        assert value == pytest.approx(expected[name], abs=0.006)
    (tmp_path / 'images' / '1.jpg').unlink()
    with pytest.raises(ValueError, match='has no image for'):
        tool.evaluate_segmentor(runner, *folders)


@pytest.mark.parametrize(
    'labels, classes, message',
    [
        (np.full(SIZE, 2), CLASSES, 'labels up to 2, and the file 2 classes'),
        (np.zeros((40, 49)), CLASSES, r'the size \(40, 49\), and its image \(40, 50\)'),
        (np.zeros(SIZE), None, 'no names of classes'),
    ],
    ids=['other class', 'other size', 'no names'],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, labels, classes, message):
    for folder in ('images', 'labels'):
        (tmp_path / folder).mkdir()
    (tmp_path / 'images/a.jpg').touch()
    Image.fromarray(labels.astype(np.uint8)).save(tmp_path / 'labels/a.png')
    found = dict(a=Segmentation(np.zeros(SIZE, np.int64)))
    runner = FakeRunner('segmentation', found, classes=classes)
    with pytest.raises(ValueError, match=message):
        tool.evaluate_segmentor(runner, tmp_path / 'labels', tmp_path / 'images')
