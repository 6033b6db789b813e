"""tools/analysis/mask_search.py: three steps between trainings, and their report."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmattn.analysis import attention_locality
from mmattn.analysis.flops import build
from mmattn.cli import train
from tools.analysis import mask_search as tool

ROOT = Path(__file__).parents[2]

CONFIG = f"""
_base_ = {str(ROOT / 'configs/demo/mait_n_landcover_patches.py')!r}
model = dict(
    backbone=dict(arch=dict(embed_dims=24, depth=3, num_heads=3), img_size=16),
    head=dict(num_classes=2, in_channels=24))
loader = dict(batch_size=4, num_workers=0, persistent_workers=False)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_epochs=1, val_interval=1)
default_hooks = dict(logger=dict(interval=1))
"""
BASE = 'small.py'


@pytest.fixture(scope='module')
def trained(tmp_path_factory, forget_instances):
    """A folder with images of two classes, and the first step, trained."""
    folder = tmp_path_factory.mktemp('work')
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        for label in ('dark', 'light'):
            parent = folder / 'data/landcover_patches' / split / label
            parent.mkdir(parents=True)
            for index in range(4):
                image = rng.integers(0, 128, (16, 16, 3)) + 127 * (label == 'light')
                cv2.imwrite(str(parent / f'{index}.png'), image)
    (folder / BASE).write_text(CONFIG)
    forget_instances()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tool.main(['initialize', BASE])
        train.main(['work_dirs/mask_search/small_1_initialize.py'])
    return folder


@pytest.fixture
def work(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


FIRST = 'work_dirs/mask_search/small_1_initialize.py'


def expected_locality():
    """By the library, of three images on disk, which no pipeline flips."""
    cfg = Config.fromfile(FIRST)
    model = build(cfg, device='cpu').eval()
    path = 'work_dirs/small_1_initialize/epoch_1.pth'
    model.load_state_dict(torch.load(path, weights_only=False)['state_dict'])
    paths = sorted(Path('data/landcover_patches/train').rglob('*.png'))
    chosen = np.linspace(0, len(paths) - 1, 3).round().astype(int)
    images = np.stack([cv2.imread(str(paths[i]))[..., ::-1] for i in chosen])
    mean, std = (
        np.float32(cfg.model.data_preprocessor[key]) for key in ('mean', 'std')
    )
    images = torch.from_numpy((images - mean) / std).permute(0, 3, 1, 2)
    return attention_locality(model.backbone, images)


def test_the_second_step_follows_head_0(work):
    """A layer has all heads masked, one head 0, and one none."""
    scores = expected_locality()
    places = scores[:, 0].sort().values
    low, high = ((places[1:] + places[:-1]) / 2).tolist()
    args = ['--num-images', '3', '--high', str(high), '--low', str(low)]
    tool.main(['assign', FIRST, *args, '--out', 'second.py'])
    second = Config.fromfile('second.py')
    expected = [
        [0, 1, 2] if score > high else [] if score < low else [0]
        for score in scores[:, 0]
    ]
    assert sorted(map(len, expected)) == [0, 1, 3]
    assert second.model.backbone.masking == expected
    search = second.mask_search
    locality = search.pop('locality')
    # 16 x 16 pixels are 4 x 4 patches and a class token; neighbors are 100 pairs.
    assert search.pop('uniform') == round(100 / 16 / 17, 3)
    assert search == dict(
        base='small.py', step='assign', high=high, low=low, split='train', num_images=3
    )
    np.testing.assert_allclose(locality, scores, atol=6e-4)


def test_report_of_finished_trainings(work, capsys):
    tool.main(['report', FIRST, '--out', 'results'])
    summary = json.loads(Path('results/small_1_initialize.json').read_text())
    log = next(Path('work_dirs/small_1_initialize').glob('*/vis_data/scalars.json'))
    last = json.loads(log.read_text().splitlines()[-1])['accuracy/top1']
    assert summary['metrics'] == {'accuracy/top1': last, 'masked heads': 3}
    assert summary['masks'] == ['0'] * 3
    assert summary['iterations'] == 2
    assert f'{last}' in capsys.readouterr().out
