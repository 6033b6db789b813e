"""Predictions of each task beside what the packages' own test step returns."""

import logging

import numpy as np
import pytest
import torch
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import init_default_scope
from PIL import Image
from predictor_models import CLASSES, CONFIGS, PALETTE, noise, write_run
from torchvision.ops import box_iou

from mmattn.apis import Predictor
from mmattn.results import Classification, Detections, Segmentation

TASKS = list(CONFIGS)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Work dirs and predictors by task."""
    folder = tmp_path_factory.mktemp('runs')
    runs = {task: write_run(folder / task, task) for task in TASKS}
    return runs, {task: Predictor(runs[task], device='cpu') for task in TASKS}


@pytest.fixture
def predictor(runs, request):
    return runs[1][request.param]


def by_package(predictor, path):
    """Return the data sample of an image file by the config's own test pipeline."""
    cfg = predictor.model.cfg
    init_default_scope(cfg.default_scope)
    steps = cfg.test_dataloader.dataset.pipeline
    steps = [step for step in steps if step['type'] != 'LoadAnnotations']
    packed = Compose(steps)(dict(img_path=str(path), img_id=0, seg_fields=[]))
    with torch.no_grad():
        (sample,) = predictor.model.model.test_step(pseudo_collate([packed]))
    return sample


@pytest.mark.parametrize('predictor', TASKS, indirect=True)
@pytest.mark.parametrize('kind', ['path', 'array', 'pillow'])
def test_results_are_those_of_the_package(predictor, kind, tmp_path):
    pixels = noise(90, 121)
    path = tmp_path / 'image.png'
    Image.fromarray(pixels).save(path)
    given = dict(path=str(path), array=pixels, pillow=Image.fromarray(pixels))[kind]
    found = predictor(given)
    sample = by_package(predictor, path)
    assert found.source == (str(path) if kind == 'path' else None)
    assert found.size == (90, 121)
    if predictor.task == 'detection':
        assert type(found) is Detections and len(found) == 6
        expected = sample.pred_instances
        np.testing.assert_array_equal(found.boxes, expected.bboxes)
        np.testing.assert_array_equal(found.scores, expected.scores)
        np.testing.assert_array_equal(found.masks, expected.masks)
        assert found.masks.any() and found.masks.shape == (6, 90, 121)
        assert found.names == ['nucleus'] * 6
        assert found.classes == ['nucleus']
    elif predictor.task == 'segmentation':
        assert type(found) is Segmentation
        np.testing.assert_array_equal(found.labels, sample.pred_sem_seg.data[0])
        assert len(found.present()) > 1 and found.labels.dtype == np.uint8
        assert found.classes == CLASSES['segmentation'] and found.palette == PALETTE
    else:
        assert type(found) is Classification
        np.testing.assert_array_equal(found.scores, sample.pred_score)
        assert found.label == int(sample.pred_label)
        assert found.classes == CLASSES['classification']


@pytest.mark.parametrize('predictor', TASKS, indirect=True)
def test_a_batch_gives_the_results_of_single_images_in_their_order(predictor):
    sizes = [(90, 121), (90, 121), (64, 50), (90, 121), (200, 77)]
    images = [noise(*size, seed=i) for i, size in enumerate(sizes)]
    alone = [predictor(image) for image in images]
    together = predictor(images, batch_size=4)
    for one, other in zip(alone, together, strict=True):
        assert one.size == other.size
        for name in ('scores', 'boxes', 'labels'):
            if hasattr(one, name):
                close = np.isclose(
                    getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-3
                )
                assert close.mean() > 0.99


@pytest.mark.parametrize('predictor', ['segmentation'], indirect=True)
def test_streams_yield_the_images_of_folders(predictor, tmp_path):
    for i in range(3):
        Image.fromarray(noise(40, 50, i)).save(tmp_path / f'{i}.png')
    found = list(predictor.stream(tmp_path))
    assert [result.source for _, result in found] == [
        str(tmp_path / f'{i}.png') for i in range(3)
    ]
    for i, (image, _) in enumerate(found):
        np.testing.assert_array_equal(image, noise(40, 50, i))
    listed = predictor(str(tmp_path), progress=True)
    assert len(listed) == 3 and len(predictor([tmp_path / '1.png'])) == 1


@pytest.mark.parametrize('predictor', ['detection', 'segmentation'], indirect=True)
def test_a_scale_replaces_the_resize(predictor):
    image = noise(96, 128)
    assert predictor.model.prepared_size(image, 1) == (96, 128)
    assert predictor.model.prepared_size(image, 1.5) == (144, 192)
    assert predictor.model.prepared_size(image) != (96, 128)
    found = predictor(image, scale=1)
    assert found.size == (96, 128)
    if predictor.task == 'segmentation':
        other = predictor(image)
        assert (found.labels != other.labels).any()
    else:
        # mmdet divides the boxes by the scale factor.
        assert found.boxes.max() <= 128
        assert predictor(image, scale=2).boxes.max() <= 128


@pytest.mark.parametrize('predictor', ['segmentation'], indirect=True)
def test_shrinking_is_told_once(predictor, caplog):
    predictor._told = False
    with caplog.at_level(logging.WARNING, 'mmattn'):
        predictor(noise(150, 200))
        predictor(noise(150, 200))
    (record,) = caplog.records
    assert '3.1 times' in record.getMessage()
    assert '200 x 150' in record.getMessage() and 'scale=1' in record.getMessage()


def test_random_weights_are_asked_for():
    cfg = CONFIGS['classification']()
    with pytest.raises(ValueError, match='pass `weights`'):
        Predictor(cfg)
    predictor = Predictor(cfg, 'random', 'cpu')
    assert predictor.weights is None and predictor(noise(40, 40)).scores.shape == (3,)
    assert "task='classification'" in repr(predictor)


def test_weights_of_another_model_are_refused(runs):
    folders, _ = runs
    wrong = folders['segmentation'] / 'epoch_2.pth'
    with pytest.raises(ValueError, match='does not match the model exactly') as caught:
        Predictor(folders['classification'], wrong)
    assert 'head.fc.weight' in str(caught.value)
    assert '--allow-partial-load' not in str(caught.value)


def test_checkpoints_run_no_code(runs, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / 'sprung').mkdir, ()

    torch.save(dict(state_dict={}, trap=Trap()), tmp_path / 'trap.pth')
    with pytest.raises(ValueError, match='--trust-checkpoint'):
        Predictor(runs[0]['classification'], tmp_path / 'trap.pth')
    assert not (tmp_path / 'sprung').exists()


@pytest.mark.parametrize(
    'predictor, options, message',
    [
        ('classification', dict(batch_size=0), '`batch_size` must be a positive .* 0'),
        ('classification', dict(scale=1), '`scale` is for detection and segmentation'),
        ('classification', dict(tile=64), '`tile` is for detection and segmentation'),
        ('detection', dict(nms_iou=1.5), '`nms_iou` must be from 0 to 1, got 1.5'),
        ('segmentation', dict(nms_iou=0.5), '`nms_iou` is for .* does segmentation'),
    ],
    indirect=['predictor'],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(predictor, options, message):
    with pytest.raises(ValueError, match=message):
        predictor(noise(40, 40), **options)


def test_scopes_of_other_packages_are_refused():
    cfg = CONFIGS['classification']()
    cfg.default_scope = 'mmpose'
    with pytest.raises(ValueError, match="must be one of .*'mmdet'.* got 'mmpose'"):
        Predictor(cfg, 'random')


@pytest.mark.parametrize('device', ['cuda', 'gpu', 'cuda:99', 'xpu'])
def test_devices_that_are_not_there(runs, device):
    if device == 'cuda' and torch.cuda.is_available():
        pytest.skip('there is a GPU')
    with pytest.raises(ValueError, match=f"`device` '{device}' cannot be used .*'cpu'"):
        Predictor(runs[0]['classification'], device=device)


def pairs_above(boxes: np.ndarray, iou: float) -> int:
    table = box_iou(torch.from_numpy(boxes), torch.from_numpy(boxes))
    return int((table.triu(1) > iou).sum())


@pytest.mark.parametrize('tile', [None, 60])
@pytest.mark.parametrize('predictor', ['detection'], indirect=True)
def test_objects_that_overlap_better_ones_are_left_out(predictor, tile):
    image = noise(90, 121)
    every = predictor(image, tile=tile)
    fewer = predictor(image, tile=tile, nms_iou=0.1)
    assert pairs_above(every.boxes, 0.1) > pairs_above(fewer.boxes, 0.1) == 0
    assert 0 < len(fewer) < len(every) and len(fewer.masks) == len(fewer)
    assert fewer.scores[0] == every.scores[0]
    assert (np.diff(fewer.scores) <= 0).all()
