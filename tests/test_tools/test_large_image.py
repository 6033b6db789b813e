"""The comparison of whole and tiled predictions of large pictures."""

import json

import numpy as np
import pytest
from predictor_models import noise, write_run

from mmattn.results import Detections, Segmentation
from tools.benchmark import large_image
from tools.benchmark.large_image import Case, Picture
from tools.benchmark.measure import read_csv


@pytest.fixture
def nuclei():
    """Instance ids of 144 squares, more than COCO evaluates, and their detections."""
    truth = np.zeros((240, 240), np.int64)
    for i in range(144):
        y, x = divmod(i, 12)
        truth[20 * y + 3 : 20 * y + 15, 20 * x + 4 : 20 * x + 14] = i + 1
    masks = truth == np.arange(1, 145)[:, None, None]
    corners = np.array([divmod(i, 12)[::-1] for i in range(144)]) * 20 + [4, 3]
    boxes = np.concatenate([corners, corners + [10, 12]], 1).astype(np.float32)
    scores = np.linspace(1, 0.5, 144, dtype=np.float32)
    names, labels = ['nucleus'] * 144, np.zeros(144, int)
    return truth, Detections(boxes, scores, labels, names, masks, size=(240, 240))


def test_all_objects_count(nuclei):
    truth, found = nuclei
    metrics = large_image.average_precision(found, truth)
    assert metrics['bbox AP'] == metrics['segm AP'] == pytest.approx(1)
    assert metrics['objects'] == metrics['nuclei'] == 144
    found.masks[:72, :, :] = False
    metrics = large_image.average_precision(found, truth)
    assert metrics['bbox AP'] == pytest.approx(1) and metrics['segm AP'] < 0.5
    metrics = large_image.average_precision(found[:72], truth)
    assert metrics['bbox AP'] == pytest.approx(0.5, abs=0.01)


def test_unlabeled_pixels_do_not_count():
    truth = np.full((4, 6), -1)
    truth[:, :3] = [0, 0, 4]
    labels = np.zeros((4, 6), np.uint8)
    labels[:, 2] = 4
    metrics = large_image.mean_iou(Segmentation(labels), truth)
    assert metrics == {'mIoU': 100, 'aAcc': 100}
    labels[:, 0] = 4
    metrics = large_image.mean_iou(Segmentation(labels), truth)
    assert metrics['aAcc'] == pytest.approx(200 / 3)
    assert metrics['mIoU'] == pytest.approx(50)


def test_rows_are_measured_and_tabulated(tmp_path, monkeypatch):
    run = write_run(tmp_path / 'run', 'segmentation')
    truth = np.zeros((70, 90), np.int64)
    case = Case(
        lambda: Picture(noise(70, 90), truth),
        str(run),
        lambda found, truth: {'mIoU': float(found.labels.size), 'segm AP': 0.51234},
        {'whole': dict(scale=1.0), 'tiles': dict(tile=64)},
    )
    monkeypatch.setattr(large_image, 'CASES', {'earth': case})
    monkeypatch.setattr(large_image, 'measure_apart', large_image.measure)
    page = tmp_path / 'large_images.md'
    page.write_text('before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n')
    large_image.main(['earth', '--docs', str(tmp_path)])
    text = page.read_text()
    assert (
        text.startswith('before\n') and text.endswith('after\n') and 'old' not in text
    )
    assert '| earth | whole |' in text and '| earth | tiles |' in text
    assert 'mIoU 6300.0, segm AP 0.512' in text
    rows = read_csv(tmp_path / 'large_images.csv')
    assert json.loads(rows[1]['metrics'])['mIoU'] == 6300
    monkeypatch.setattr(large_image, 'measure_apart', None)  # what is there stays
    large_image.main(['earth', '--docs', str(tmp_path)])
    assert page.read_text() == text
