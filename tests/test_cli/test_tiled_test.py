"""mmattn test --tile: whole images against tiles of a data set that was converted."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

pytest.importorskip('sahi')
from mmattn.cli import data_convert, test, tiled_test
from mmattn.engine.model import build_model
from mmattn.errors import UserError
from mmattn.results import Detections, Segmentation

BOXES = [[8, 8, 24, 20], [50, 30, 40, 24], [84, 4, 20, 20]]  # two are cut at 64
CONFIG = dict(coco='faster_rcnn_ivit_n_set.py', labels='upernet_ivit_n_set.py')


@pytest.fixture(params=[pytest.param('coco', marks=pytest.mark.slow), 'labels'])
def config(request, tmp_path, monkeypatch, forget_instances):
    """A config of images of 64 x 112 pixels that are cut into tiles, with weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    rng = np.random.default_rng(0)
    for folder in ('images', 'maps'):
        Path(folder).mkdir()
    for name in 'ab':
        pixels = rng.integers(0, 256, (64, 112, 3), np.uint8)
        Image.fromarray(pixels).save(f'images/{name}.png')
        labels = np.zeros((64, 112), np.uint8)
        labels[:, 60:] = 1
        Image.fromarray(labels).save(f'maps/{name}.png')
    size, each = dict(width=112, height=64), dict(category_id=1)
    content = dict(
        images=[dict(size, id=name, file_name=f'{name}.png') for name in 'ab'],
        annotations=[dict(each, image_id=n, bbox=box) for n in 'ab' for box in BOXES],
        categories=[dict(id=1, name='thing')],
    )
    Path('a.json').write_text(json.dumps(content))
    args = ['coco', 'images', 'a.json']
    if request.param == 'labels':
        args = ['labels', 'images', 'maps', '--classes', 'left', 'right']
    args += ['--val-images', 'b*', '--tile', '64', '--no-estimate']
    data_convert.main(['--arch', 'ivit_nano', *args, '--out', 'data/set'])
    path = f'data/{CONFIG[request.param]}'
    torch.manual_seed(0)
    model, _ = build_model(Config.fromfile(path), None)
    torch.save(dict(state_dict=model.state_dict()), 'any.pth')
    return path


class Truth:
    """A predictor that is right, and keeps what it is asked for."""

    asked = []

    def __init__(self, cfg, weights, device, trust_checkpoint):
        assert (weights, device) == ('any.pth', 'cpu')
        self.task = 'detection' if cfg.default_scope == 'mmdet' else 'segmentation'

    def __call__(self, path, tile, overlap):
        self.asked.append((Path(path).parts[-2:], tile, overlap))
        if self.task == 'segmentation':
            labels = np.asarray(Image.open('maps/b.png'))
            return Segmentation(labels, ['left', 'right'], None)
        boxes = np.array(BOXES, np.float32)
        boxes[:, 2:] += boxes[:, :2]
        scores = np.full(3, 0.9, np.float32)
        return Detections(boxes, scores, np.zeros(3, int), ['thing'] * 3)


def test_whole_images_are_evaluated_beside_tiles(config, monkeypatch, capsys):
    monkeypatch.setattr(tiled_test, 'Predictor', Truth)
    monkeypatch.setattr(Truth, 'asked', [])
    test.main([config, '--weights', 'any.pth', '--tile'])
    folder = 'val_whole'
    assert Truth.asked == [((folder, 'b.png'), 64, 0.2)]
    results = json.loads(next(Path('work_dirs').glob('*/results.json')).read_text())
    metric, best = ('coco/bbox_mAP', 1) if 'faster' in config else ('mIoU', 100)
    assert results['metrics'][metric] == best and results['images'] == 1
    table = capsys.readouterr().out.partition('whole images  validation tiles')[2]
    row = next(line for line in table.splitlines() if line.split()[:1] == [metric])
    assert float(row.split()[1]) == best and float(row.split()[2]) < best


NO_VALIDATION = 'val_cfg=None', 'val_dataloader=None', 'val_evaluator=None'


def test_tiles_run_through_the_model(config):
    """The merged result of a model that knows nothing is evaluated, too."""
    options = '--tile', '64', '--overlap', '0.5', '--cfg-options', *NO_VALIDATION
    test.main([config, '--weights', 'any.pth', *options])
    results = json.loads(next(Path('work_dirs').glob('*/results.json')).read_text())
    assert ('coco/bbox_mAP' if 'faster' in config else 'mIoU') in results['metrics']


@pytest.mark.parametrize('config', ['coco'], indirect=True)
def test_a_limit_of_the_detector_is_one_of_tiles(config, monkeypatch, capfd):
    monkeypatch.setattr(tiled_test, 'Predictor', Truth)
    options = '--cfg-options', *NO_VALIDATION, 'model.test_cfg.rcnn.max_per_img=1'
    test.main([config, '--weights', 'any.pth', '--tile', *options])
    out, err = capfd.readouterr()
    assert 'bbox_mAP' in out + err and 'reach the limit' not in out + err


@pytest.mark.parametrize(
    'options, message',
    [
        (['--tile', 'x'], "--tile must be a number of pixels, got 'x'"),
        (['--tile', '0'], '`tile` must be a positive number'),
        (['--tile', '64', '--overlap', '1'], '`overlap` must be at least 0'),
        (['--tile', '64', '--tta'], '--tile does not support --tta'),
    ],
    ids=['text', 'zero', 'overlap', 'tta'],
)
@pytest.mark.parametrize('config', ['coco'], indirect=True)
def test_what_contradicts_tiles(config, options, message):
    with pytest.raises(UserError, match=message):
        test.main([config, '--weights', 'any.pth', *options])


@pytest.mark.parametrize(
    'scope, side, message',
    [
        ('mmpretrain', '64', 'for detection and segmentation'),
        ('mmdet', tiled_test.OF_CONFIG, 'needs a side, as the config has no `tile`'),
    ],
)
def test_configs_that_tiles_do_not_fit(scope, side, message):
    options = dict.fromkeys(('tta', 'amp', 'show', 'show_dir', 'overlap'))
    args, cfg = Namespace(tile=side, **options), Config(dict(default_scope=scope))
    with pytest.raises(UserError, match=message):
        tiled_test.use_tiles(cfg, args)
