"""Ten faults, planted into clean data, results and logs one at a time, are named."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config

from mmattn.analysis.diagnosis import diagnose
from mmattn.analysis.samples import Sample
from mmattn.data.archs import find_arch
from mmattn.data.recognize import config_for
from mmattn.results import Detections
from mmattn.results.names import class_names

CLASSES = ['square', 'disk', 'bar']
HEIGHT, WIDTH = 240, 320
IMAGES = {'train': 12, 'val': 6}
OBJECTS = 8


def draw(rng: np.random.Generator, path: Path) -> tuple[list[list[float]], list[int]]:
    """Write an image of objects in a grid; return their boxes, xywh, and labels."""
    image = rng.integers(0, 60, (HEIGHT, WIDTH, 3), np.uint8) + np.uint8([20, 60, 120])
    boxes, labels = [], []
    for place in rng.permutation(12)[:OBJECTS].tolist():
        side = int(rng.integers(24, 60))
        x, y = 80 * (place % 4) + int(rng.integers(4, 16)), 80 * (place // 4) + 8
        label = int(rng.integers(3))
        cv2.rectangle(image, (x, y), (x + side, y + side), (60 * label, 200, 90), -1)
        boxes.append([x, y, side, side])
        labels.append(label)
    cv2.imwrite(str(path), image)
    return boxes, labels


def write(folder: Path) -> dict[str, list]:
    """Write a data set of COCO; return boxes and labels of each image."""
    rng = np.random.default_rng(0)
    (folder / 'annotations').mkdir(parents=True)
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)]
    objects = {}
    for split, count in IMAGES.items():
        (folder / split).mkdir()
        content = dict(images=[], annotations=[], categories=categories)
        objects[split] = []
        for number in range(count):
            name = f'{split}{number}.png'
            boxes, labels = draw(rng, folder / split / name)
            objects[split].append((boxes, labels))
            size = dict(height=HEIGHT, width=WIDTH)
            content['images'].append(dict(id=number, file_name=name, **size))
            for box, label in zip(boxes, labels, strict=True):
                entry = dict(id=len(content['annotations']) + 1, image_id=number)
                entry |= dict(bbox=box, area=box[2] * box[3], iscrowd=0)
                content['annotations'].append(entry | dict(category_id=label + 1))
        file = folder / f'annotations/instances_{split}.json'
        file.write_text(json.dumps(content))
    return objects


def detections(boxes, labels, scores) -> Detections:
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    labels = np.array(labels, np.int64)
    names = class_names(CLASSES, labels)
    scores = np.array(scores, np.float32)
    return Detections(boxes, scores, labels, names, classes=CLASSES)


def predicted(objects: list) -> list[Sample]:
    """Return what a good detector finds: most objects, a bit off, and some noise."""
    rng, samples = np.random.default_rng(1), []
    for index, (boxes, labels) in enumerate(objects):
        truth = detections(boxes, labels, np.ones(len(labels)))
        kept = rng.random(len(boxes)) < 0.9
        near = np.array(boxes, float)[kept] + rng.normal(0, 1.5, (kept.sum(), 4))
        guesses = rng.uniform(10, 100, (3, 4))
        given = [*np.array(labels)[kept], *rng.integers(0, 3, 3)]
        scores = [*rng.uniform(0.6, 1, len(near)), 0.35, 0.2, 0.1]
        found = detections([*near, *guesses], given, scores)
        order = np.argsort(-found.scores)
        samples.append(Sample(index, f'val{index}.png', truth, found[order.tolist()]))
    return samples


def falling(count: int = 60) -> list[dict]:
    rng = np.random.default_rng(2)
    steps = np.arange(1, count + 1)
    losses = 2 * np.exp(-steps / 20) + 0.3 + rng.normal(0, 0.05, count)
    pairs = zip(steps.tolist(), losses.tolist(), strict=True)
    return [dict(step=step, loss=loss, lr=1e-3) for step, loss in pairs]


class Case:
    """Clean data, with a config, results and a log."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.objects = write(folder)
        self.cfg = Config.fromfile(config_for(folder, find_arch('pvt_v2_b0')))
        self.samples, self.records = predicted(self.objects['val']), falling()

    def named(self) -> set[str]:
        found = diagnose(self.cfg, self.samples, self.records)
        return {finding.cause for finding in found}

    def rewrite(self, change):
        """Change the boxes of all annotations."""
        for file in self.folder.glob('annotations/*.json'):
            content = json.loads(file.read_text())
            for entry in content['annotations']:
                entry['bbox'] = change(*entry['bbox'])
            file.write_text(json.dumps(content))

    def relabel(self, order: list[int]):
        for sample in self.samples:
            labels = np.array(order)[sample.truth.labels]
            sample.truth = replace(sample.truth, labels=labels)


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Case(Path('shapes'))


def plant_shift(case):
    case.relabel([1, 2, 0])


def plant_order(case):
    case.relabel([1, 0, 2])


def plant_corners(case):
    case.rewrite(lambda x, y, w, h: [x, y, x + w, y + h])


def plant_clipped_corners(case):
    case.rewrite(
        lambda x, y, w, h: [x, y, min(x + w, WIDTH - x), min(y + h, HEIGHT - y)]
    )


def plant_missing_labels(case):
    for sample in case.samples:
        sample.truth = sample.truth[::2]


def plant_leak(case):
    for number in range(2):
        val = case.folder / f'val/val{number}.png'
        shutil.copyfile(case.folder / f'train/train{number}.png', val)


def plant_swapped_files(case):
    for path in (case.folder / 'val').iterdir():
        cv2.imwrite(str(path), cv2.imread(str(path))[..., ::-1])


def plant_swapped_config(case):
    case.cfg.model.data_preprocessor.bgr_to_rgb = False


def plant_small_objects(case):
    for pipeline in (case.cfg.train_pipeline, case.cfg.test_pipeline):
        for step in pipeline:
            if step.type == 'Resize':
                step.scale_factor = 0.15
    case.cfg.val_dataloader.dataset.pipeline = case.cfg.test_pipeline


def plant_limit(case):
    case.cfg.model.test_cfg.rpn.max_per_img = OBJECTS - 1


def plant_high_rate(case):
    for record in case.records[20:]:
        record['loss'] += 0.1 * (record['step'] - 20)


def plant_no_number(case):
    case.records[-1]['loss'] = float('nan')


def plant_normalization(case):
    case.cfg.model.data_preprocessor.update(mean=[0, 0, 0], std=[255, 255, 255])


FAULTS = {
    plant_shift: 'shifted category ids',
    plant_order: 'class order',
    plant_corners: 'wrong annotations',
    plant_clipped_corners: 'wrong annotations',
    plant_missing_labels: 'missing labels',
    plant_leak: 'leaked split',
    plant_swapped_files: 'swapped channels',
    plant_swapped_config: 'swapped channels',
    plant_small_objects: 'objects too small',
    plant_limit: 'limit reached',
    plant_high_rate: 'learning rate too high',
    plant_no_number: 'learning rate too high',
    plant_normalization: 'normalization of another start',
}


def test_clean_data_have_no_fault(case):
    assert case.named() == set()


@pytest.mark.parametrize('plant', FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_alone(case, plant):
    plant(case)
    assert case.named() == {FAULTS[plant]}


def test_the_worst_images_have_the_most_missed_and_false_objects(case):
    assert all(sample.badness() < 4 for sample in case.samples)
    bad = case.samples[3]
    bad.found = bad.found[:2]
    assert bad.errors() == (OBJECTS - 2, 0) and bad.badness() == OBJECTS - 2
    assert bad.described() == f'{OBJECTS - 2} of {OBJECTS} missed, 0 false'
    assert max(case.samples, key=Sample.badness) is bad
