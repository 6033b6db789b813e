"""The recipe of training that mmattn data convert writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.apis.budget import dataset_of
from mmattn.data import convert, own_config


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
    convert.main(
        [kind, 'images', 'masks', '--arch', 'ivit_nano', '--pretrained', 'none']
        + ['--out', 'data/set', '--no-estimate', '--force', *options]
    )
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
