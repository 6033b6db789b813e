"""Exported files beside PyTorch with the test pipeline of their config."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image
from predictor_models import CLASSES, noise, write_run

from mmattn.apis import Predictor
from mmattn.export import ExportError, Metadata, api, export_model
from mmattn.export.comparison import Prediction, Tally
from mmattn.export.metrics import Metrics
from mmattn.results import Classification, Detections, Segmentation

# Smaller than what the pipeline gives after padding to multiples of 32.
SHAPES = dict(detection=(120, 160), segmentation=(48, 64), classification=(32, 32))
NUM_IMAGES = 3


def write_test_set(folder, task):
    """Return a config with images that are annotated by its own model, and weights."""
    run = write_run(folder / 'run', task)
    cfg = Config.fromfile(run / f'{task}.py')
    (folder / 'images').mkdir()
    (folder / 'labels').mkdir()
    predict = Predictor(run, device='cpu')
    truth = dict(images=[], annotations=[], categories=[dict(id=1, name='nucleus')])
    lines = []
    for key in range(NUM_IMAGES):
        name, pixels = f'{key}.png', noise(90, 121, key)
        Image.fromarray(pixels).save(folder / 'images' / name)
        found = predict(pixels)
        if task == 'detection':
            size = dict(height=90, width=121)
            truth['images'].append(dict(id=key, file_name=name, **size))
            truth['annotations'] += found.to_coco(key)
        elif task == 'segmentation':
            Image.fromarray(found.labels).save(folder / 'labels' / name)
        else:
            lines.append(f'{name} {found.label}\n')
    settings = dict(data_root=str(folder))
    if task == 'detection':
        for key, each in enumerate(truth['annotations']):
            each['id'] = key + 1
        (folder / 'truth.json').write_text(json.dumps(truth))
        settings |= dict(ann_file='truth.json', data_prefix=dict(img='images'))
    elif task == 'segmentation':
        prefix = dict(img_path='images', seg_map_path='labels')
        settings |= dict(data_prefix=prefix, img_suffix='.png')
    else:
        (folder / 'truth.txt').write_text(''.join(lines))
        names = dict(classes=CLASSES[task])
        settings |= dict(ann_file='truth.txt', data_prefix='images', metainfo=names)
    cfg.test_dataloader.dataset.update(settings)
    return cfg, run / 'epoch_2.pth'


METRICS = dict(
    detection=['bbox_mAP', 'segm_mAP'],
    segmentation=['mIoU', 'aAcc'],
    classification=['top1'],
)
MEASURED = re.compile(r'  (\w+): (\d+\.\d{4}) in PyTorch, (\d+\.\d{4}) in the file')


@pytest.mark.parametrize(
    'task',
    [
        pytest.param('detection', marks=pytest.mark.slow),
        'segmentation',
        'classification',
    ],
)
def test_results_and_metrics_are_those_of_the_test_pipeline(task, tmp_path, caplog):
    cfg, weights = write_test_set(tmp_path, task)
    out, said = tmp_path / 'model.pt2', []
    settings = dict(shape=SHAPES[task], say=said.append)
    metadata = export_model(cfg, weights, out, verify=None, num_images=2, **settings)
    is_rounded = 'data_preprocessor pads images to multiples of 32' in caplog.text
    assert is_rounded == (tuple(metadata.shape) != SHAPES[task])
    title, counts, *metrics = said
    assert title.endswith('on 2 of 3 images of test_dataloader.dataset')
    expected = dict(
        detection='12 objects in PyTorch, 12 in the file, 12 in common; boxes differ',
        segmentation='the same class in 100.000% of the pixels',
        classification='scores differ by at most ',
    )
    assert counts.startswith(f'  2 images: {expected[task]}')
    found = [MEASURED.fullmatch(line).groups() for line in metrics]
    assert [name for name, *_ in found] == METRICS[task]
    assert all(float(value) == float(other) > 0 for _, value, other in found)


@pytest.mark.slow
def test_a_file_that_pads_less_than_pytorch_is_refused(tmp_path, monkeypatch):
    """This is what a file of 120 x 160 did before shapes were rounded up."""
    cfg, weights = write_test_set(tmp_path, 'detection')
    monkeypatch.setattr(api, '_rounded', lambda shape, divisor: list(shape))
    out, images = tmp_path / 'model.pt2', [tmp_path / 'images/0.png']
    with pytest.raises(ExportError, match='does not repeat PyTorch .* 6 objects in'):
        export_model(cfg, weights, out, shape=(120, 160), verify=images)
    assert not out.exists()


@pytest.mark.slow
def test_other_sizes_and_a_missing_test_set_are_told(tmp_path):
    cfg, weights = write_test_set(tmp_path, 'segmentation')
    said = []
    settings = dict(force=True, say=said.append)
    out, image = tmp_path / 'model.pt2', tmp_path / 'images/0.png'
    for shape, note in (
        ((32, 32), 'makes smaller than PyTorch, to fit 32 x 32'),
        ((96, 96), 'pads to 96 x 96, and PyTorch less'),
    ):
        export_model(cfg, weights, out, shape=shape, verify=image, **settings)
        title, counts = said
        assert (
            title.endswith('on 1 images') and f'1 images that the file {note}' in counts
        )
        said.clear()
    shutil.rmtree(tmp_path / 'images')
    export_model(cfg, weights, out, shape=(64, 64), verify=None, **settings)
    (line,) = said
    assert line.startswith('comparing with PyTorch on noise alone: test_dataloader')
    assert line.endswith(f'{tmp_path}/images does not exist')


def objects(boxes, scores, labels, masks=None):
    names = [f'class {label}' for label in labels]
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(boxes, np.array(scores), np.array(labels, int), names, masks)


BOXES = [[0, 0, 9, 9], [0, 0, 9, 9.5], [20, 20, 30, 30]]
EXPECTED = objects(BOXES, [0.9, 0.895, 0.5], [0, 0, 1])


@pytest.mark.parametrize(
    'found, common, share',
    [
        (EXPECTED[[1, 2, 0]], 3, 1),
        (EXPECTED[[0, 2]], 2, 1),  # rounding may have lost one
        (EXPECTED[[2]], 1, 1 / 3),
        (EXPECTED[[0, 0, 0, 0]], 2, 0.5),
        (objects(BOXES, [0.9, 0.895, 0.5], [1, 1, 1]), 1, 1 / 3),
        (objects(BOXES, [0.7, 0.6, 0.5], [0, 0, 1]), 1, 1 / 3),
        (objects(np.add(BOXES, 1.2), [0.9, 0.895, 0.5], [0, 0, 1]), 0, 0),
        (objects([], [], []), 0, 0),
    ],
    ids=['order', 'one', 'two', 'twice', 'class', 'score', 'box', 'none'],
)
def test_objects_in_common(found, common, share):
    tally = Tally()
    tally.add(EXPECTED, found)
    assert (tally.expected, tally.found, tally.common) == (3, len(found), common)
    assert tally.share == pytest.approx(share)


def test_masks_pixels_and_scores_in_common():
    masks = np.zeros((2, 8, 8), bool)
    masks[:, :4] = True
    moved = masks.copy()
    moved[1, 2:] = False
    tally = Tally()
    pair = (objects(BOXES[1:], [0.9, 0.5], [0, 1], each) for each in (masks, moved))
    tally.add(*pair)
    assert tally.common == 2 and tally.share == pytest.approx(0.75)
    tally = Tally()
    tally.add(Segmentation(masks[0].astype(int)), Segmentation(moved[1].astype(int)))
    assert tally.share == pytest.approx(0.75)
    tally = Tally()
    for scores in ([0.5, 0.5], [0.502, 0.498], [0.4, 0.6]):
        tally.add(
            Classification(np.array([0.5, 0.5])), Classification(np.array(scores))
        )
    assert tally.common == 1 and tally.share == pytest.approx(1 / 3)


INSTANCES = [dict(bbox=box, bbox_label=i % 2) for i, box in enumerate(BOXES[1:])]
MAP = np.array([[0, 1], [1, 1]])
MAPS = Segmentation(MAP), Segmentation(1 - MAP)
SCORES = Classification(np.array([0.1, 0.9])), Classification(np.array([0.9, 0.1]))
SIZE, LABEL = dict(ori_shape=(40, 40)), dict(gt_label=torch.tensor([1]))
LABELS = dict(gt_sem_seg=SimpleNamespace(data=torch.from_numpy(MAP)[None]))
SOME, ALL = (EXPECTED[1:], EXPECTED[:0]), (EXPECTED, EXPECTED)


@pytest.mark.parametrize(
    'task, instances, truth, results, expected',
    [
        ('detection', INSTANCES, SIZE, SOME, dict(bbox_mAP=(1, 0))),
        ('detection', [], SIZE, ALL, {}),
        ('detection', None, {}, ALL, {}),
        ('segmentation', None, LABELS, MAPS, dict(mIoU=(100, 0), aAcc=(100, 0))),
        ('segmentation', None, {}, MAPS, {}),
        ('classification', None, LABEL, SCORES, dict(top1=(100, 0))),
    ],
)
def test_metrics_of_both(task, instances, truth, results, expected):
    metadata = Metadata(task, ['image'], [], [8, 8], classes=['a', 'b'])
    metrics = Metrics(metadata)
    sample = BaseDataElement()
    for name, value in truth.items():
        sample.set_field(value, name)
    torch_result, found = results
    given = (8, 8), (8, 8), sample, instances
    metrics.add(Prediction('a.png', torch_result, *given), found)
    measured = metrics.measured()
    assert list(measured) == list(expected)
    for name, pair in expected.items():
        assert measured[name] == pytest.approx(pair)
