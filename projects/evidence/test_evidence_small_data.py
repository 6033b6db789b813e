"""projects/evidence/small_data.py: networks at equal CPU seconds on converted data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image

from mmattn.analysis import count
from mmattn.analysis.flops import build
from mmattn.cli import data_convert
from projects.evidence import small_data
from projects.evidence.torchvision_models import (
    IGNORED,
    TorchvisionDetector,
    TorchvisionSegmentor,
)
from tools.benchmark.measure import read_csv
from tools.dev.measured import expected


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Return a config of images with a bright square."""
    monkeypatch.chdir(tmp_path)
    for kind in ('images', 'masks'):
        Path(kind).mkdir()
    for index in range(5):
        mask = np.zeros((64, 64), np.uint8)
        mask[20 + index : 40, 10:30] = 1
        Image.fromarray(mask).save(f'masks/{index}.png')
        Image.fromarray(mask * 200).convert('RGB').save(f'images/{index}.png')
    data_convert.main(
        ['labels', 'images', 'masks', '--classes', 'ground', 'square', '--no-estimate']
        + ['--arch', 'ivit_nano', '--pretrained', 'none', '--out', 'data/scenes']
    )
    return Path('data/upernet_ivit_n_scenes.py')


def run(path: Path, *options: str) -> list[dict]:
    """Return the rows after a command."""
    small_data.main([str(path), '--rows', 'rows.csv', *options])
    return read_csv(Path('rows.csv'))


def test_each_run_has_a_row_and_is_done_once(data, monkeypatch):
    def execute(cfg: Config, minutes: float) -> dict:
        taken.append((cfg.model.backbone.type, cfg.optim_wrapper.optimizer.lr))
        assert not cfg.train_dataloader.num_workers and minutes == 2
        value = 30 + 10 * cfg.randomness.seed + ('custom_hooks' not in cfg)
        return dict(metric='mIoU', iterations=9, value=value, cpu_seconds=120.1)

    taken = []
    monkeypatch.setattr(small_data, 'execute', execute)
    two = ['--minutes', '2', '--networks', 'ivit_nano', 'resnet18', '--seeds', '0', '1']
    rows = run(data, *two)
    assert taken == [('mmattn.IViT', 1e-3), ('ResNet', 1e-3)] * 2
    assert run(data, *two) == rows and len(taken) == 4
    rows = run(data, *two[:4], '--seeds', '0', '--parts', 'jitter', '--lr', '0.01')
    assert taken[4:] == [('mmattn.IViT', 0.01)]
    assert [rows[-1][name] for name in ('parts', 'lr')] == ['jitter', '0.01']
    table = expected('rows.csv', folder=Path())
    cell = '35.0 (30.0 to 40.0, 2 seeds)'
    assert '| `ivit_nano`, random, 0.001 | `resnet18`, random, 0.001 |' in table
    assert f'| 2 | jitter, ema | mIoU | {cell} | {cell} | – |' in table
    assert f'commit {rows[0]["commit"]}' in table


def test_the_parts_of_a_recipe(data):
    def put(*parts: str) -> tuple[Config, dict]:
        cfg = small_data.read_config_file(str(data))
        small_data.put_parts(cfg, parts)
        steps = cfg.train_dataloader.dataset.pipeline
        assert steps[-1]['type'] == 'PackSegInputs'
        return cfg, {step['type']: step for step in steps}

    cfg, steps = put(*small_data.RECIPE)
    assert cfg.to_dict() == small_data.read_config_file(str(data)).to_dict()
    assert len(steps['RandomChoice'].transforms) == 3 and cfg.custom_hooks
    cfg, steps = put('color')
    assert steps['RandomChoice'].transforms == [[cfg.resize]] and not cfg.custom_hooks
    assert 'PhotoMetricDistortion' in steps


@pytest.mark.parametrize('network', small_data.NETWORKS)
def test_a_network_takes_the_place_of_the_backbone(data, network, monkeypatch):
    weights = []
    monkeypatch.setattr(small_data, 'use_pretrained', lambda *args: weights.append(1))
    cfg = small_data.read_config_file(str(data))
    start = small_data.put_network(cfg, network)
    assert (start == 'ImageNet') == bool(weights) == (network == 'efficientnet_lite0')
    assert count(build(cfg), (64, 64)).params > 3e6  # the maps fit the head
    assert network != 'resnet18' or not cfg.model.backbone.norm_eval


def test_torchvisions_detector_finds_boxes_of_the_whole_image():
    model = TorchvisionDetector(2, 5).train()
    boxes = torch.tensor([[4.0, 6, 40, 30], [10, 10, 20, 50]])
    sample = DetDataSample(metainfo=dict(scale_factor=(0.5, 0.25)))
    sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([0, 1]))
    image = torch.rand(1, 3, 64, 96)
    losses = model(image, [sample], mode='loss')
    assert len(losses) == 4 and all(loss.isfinite() for loss in losses.values())
    shapes = []
    model.model.roi_heads.forward = lambda features, proposals, shapes_, targets: (
        shapes.extend(shapes_) or [dict(boxes=boxes, scores=boxes[:, 0], labels=ONE)],
        {},
    )
    (found,) = model.eval()(image, [sample], mode='predict')
    assert shapes == [(64, 96)]
    expected = boxes / torch.tensor([0.5, 0.25, 0.5, 0.25])
    torch.testing.assert_close(found.pred_instances.bboxes, expected)
    assert found.pred_instances.labels.tolist() == [0, 0]


ONE = torch.ones(2, dtype=torch.int64)


def test_torchvisions_segmentor_has_maps_of_the_whole_image():
    model, image = TorchvisionSegmentor(3).train(), torch.rand(2, 3, 64, 96)
    samples = [SegDataSample(metainfo=dict(ori_shape=(32, 48))) for _ in image]
    for sample in samples:
        sample.gt_sem_seg = PixelData(data=torch.full((1, 64, 96), IGNORED))
        sample.gt_sem_seg.data[0, 0, 0] = 2
    assert 0 < model(image, samples, mode='loss')['loss'] < 9
    for sample in model.eval()(image, samples, mode='predict'):
        assert sample.pred_sem_seg.data.shape == (1, 32, 48)


@pytest.mark.slow
@pytest.mark.parametrize('network', ['ivit_nano', 'torchvision'])
def test_a_run_takes_its_cpu_time(data, network):
    (row,) = run(data, '--minutes', '0.05', '--networks', network, '--seeds', '0')
    assert row['lr'] == ('0.005' if network == 'torchvision' else '0.001')
    assert int(row['iterations']) >= small_data.TIMED
    assert float(row['cpu_seconds']) > 0 and 0 <= float(row['value']) <= 100
