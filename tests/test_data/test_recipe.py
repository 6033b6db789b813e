"""The recipe of training that mmattn data convert writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conversions import run
from mmengine.config import Config
from mmengine.registry import HOOKS
from PIL import Image

from mmattn.apis.budget import dataset_of
from mmattn.data import own_config


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Images whose object has two corners, with much space between them."""
    monkeypatch.chdir(tmp_path)
    for kind in ('images', 'masks'):
        Path(kind).mkdir()
    mask = np.zeros((60, 60), np.uint8)
    mask[:5, :5] = mask[-5:, -5:] = mask[40:50, 10:30] = 1
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 256, (60, 60, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(f'images/{index}.png')
        Image.fromarray(mask).save(f'masks/{index}.png')


def written(kind: str, *options: str) -> Config:
    """Return the config of `data/set`."""
    run(kind, 'images', 'masks', '--pretrained', 'none', *options)
    (path,) = Path('data').glob('*.py')
    return Config.fromfile(path)


def test_no_crop_leaves_a_box_without_area(monkeypatch):
    """The loss of one is NaN. An image without objects is kept."""
    monkeypatch.setattr(own_config, 'CROP', 32)
    dataset = dataset_of(written('masks'), 'train_dataloader')
    found = [dataset[i % 4]['data_samples'].gt_instances.bboxes for i in range(40)]
    sides = [torch.stack([boxes.widths, boxes.heights], 1) for boxes in found]
    assert min(side.min() for side in sides if len(side)) >= 1
    assert min(map(len, sides)) == 0


def sizes(cfg: Config) -> set[tuple[int, ...]]:
    dataset = dataset_of(cfg, 'train_dataloader')
    return {tuple(dataset[i % 4]['inputs'].shape[1:]) for i in range(30)}


@pytest.mark.parametrize('kind', ['masks', 'labels'])
def test_training_sees_images_at_several_sizes(kind):
    """Crops have at most 64 pixels; tests see one size."""
    options = ['--classes', 'ground', 'corner'] if kind == 'labels' else []
    cfg = written(kind, *options, '--factor', '0.9', '--flip', 'both')
    assert sizes(cfg) == {(41, 41), (54, 54), (64, 64)}
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    assert steps['RandomFlip'].direction == ['horizontal', 'vertical', 'diagonal']
    tested = {step.type: step for step in cfg.val_dataloader.dataset.pipeline}
    assert tested['Resize'].scale_factor == 0.9
    (ema,) = cfg.custom_hooks
    assert HOOKS.build(ema).ema_cfg['type'] == 'MomentumAnnealingEMA'
    assert ema.update_buffers  # batch norm of heads needs its own averages


def test_photographs_keep_what_is_up():
    cfg = written('masks')
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    assert steps['RandomFlip'] == dict(type='RandomFlip', prob=0.5)


def test_tiles_of_a_single_class_are_drawn():
    """Five of the nine tiles of an image have the ground alone."""
    pytest.importorskip('sahi')
    kept = {}
    for share in ('0', '0.5', None):
        options = ['--classes', 'ground', 'corner', '--tile', '20', '--overlap', '0']
        written('labels', *options, *(['--empty-tiles', share] if share else []))
        folders = [Path('data/set/labels', split) for split in ('train', 'val')]
        kept[share] = [len([*folder.iterdir()]) for folder in folders]
    assert kept == {'0': [16, 9], '0.5': [16 + 10, 9], None: [36, 9]}
