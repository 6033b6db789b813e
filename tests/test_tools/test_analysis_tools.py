"""The analysis tools that call the tools of mmdet, mmseg and mmpretrain."""

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import pytest

from mmattn.cli import package_tool
from tools.datasets import toy

CONFIGS = {
    'detector': """
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
resize = dict(type='Resize', scale=(96, 96), keep_ratio=True)
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    resize,
    dict(type='PackDetInputs')]))
""",
    'segmentor': """
_base_ = 'mmattn::upernet/ivit_t_160k_ade20k.py'
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs')]))
""",
    'classifier': "_base_ = 'mmattn::classification/ivit_t_300e_in1k.py'",
}


@pytest.fixture
def tool(tmp_path, monkeypatch, forget_instances):
    """Runs the `main` of a tool in a folder with toy data, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *args):
        forget_instances()
        monkeypatch.setattr(sys, 'argv', sys.argv)
        monkeypatch.setattr(sys, 'path', sys.path[:])
        importlib.import_module(f'tools.analysis.{name}').main([*map(str, args)])

    for name, text in CONFIGS.items():
        Path(f'{name}.py').write_text(text)
    return call


def test_a_config_is_printed_with_its_bases_and_options(tool, capsys):
    tool('print_config', 'segmentor.py', '--cfg-options', 'randomness.seed=7')
    out = capsys.readouterr().out
    assert "type='mmattn.IViT'" in out and 'randomness = dict(seed=7)' in out
    with pytest.raises(SystemExit, match='0'):
        tool('print_config', 'detector.py', '--help')
    assert '--save-path' in capsys.readouterr().out


@pytest.mark.parametrize(
    'task, make, names',
    [
        ('detector', 'coco', ['000000001000.jpg', '000000001007.jpg']),
        ('segmentor', 'ade20k', ['ADE_train_00000001.jpg', 'ADE_train_00000002.jpg']),
        ('classifier', 'imagenet', ['n01440764_1.JPEG', 'n01443537_2.JPEG']),
    ],
)
def test_a_data_set_is_drawn_with_its_annotations(tool, task, make, names):
    roots = {'coco': 'coco', 'ade20k': 'ade', 'imagenet': 'imagenet'}
    root = Path('data', roots[make])
    toy.MAKERS[make](root, num_images=2)
    tool('browse_dataset', f'{task}.py', '--not-show', '--output-dir', 'drawn')
    assert sorted(path.name for path in Path('drawn').iterdir()) == names
    drawn = cv2.imread(f'drawn/{names[0]}')
    original = cv2.imread(str(next(root.rglob(names[0]))))
    if task == 'classifier':
        assert drawn.shape == (224, 224, 3)  # as augmented
    else:
        original = cv2.resize(original, drawn.shape[1::-1])
        assert (drawn != original).any(axis=2).mean() > 0.1


def write_log(path: str, metric: str, by_epoch: bool) -> str:
    """As mmengine writes `vis_data/scalars.json`: two epochs of four iterations."""
    records = []
    for step in range(1, 9):
        record = {'lr': 0.1, 'loss': 1 / step, 'time': 0.2 + 0.1 * step, 'step': step}
        if by_epoch:
            record = {**record, 'epoch': (step + 3) // 4, 'iter': step}
        records.append(record)
        if step % 4 == 0:
            records.append({metric: step / 10, 'step': step // 4 if by_epoch else step})
    Path(path).write_text('\n'.join(map(json.dumps, records)))
    return path


@pytest.mark.parametrize('metric, by_epoch', [('mIoU', False), ('coco/bbox_mAP', True)])
def test_curves_of_every_task_are_drawn(tool, capsys, metric, by_epoch):
    log = write_log('log.json', metric, by_epoch)
    tool('analyze_logs', 'plot_curve', log, '--keys', 'loss', metric, '--out', 'a.png')
    assert cv2.imread('a.png').std() > 1
    tool('analyze_logs', 'cal_train_time', log)
    assert 'average iter time: 0.6500 s/iter' in capsys.readouterr().out


@pytest.mark.skipif(find_spec('seaborn') is not None, reason='seaborn is installed')
def test_a_missing_dependency_is_named(tool):
    log = write_log('log.json', 'mIoU', False)
    with pytest.raises(SystemExit, match='pip install seaborn'):
        tool('analyze_logs', log, '--package', 'mmseg', '--out', 'a.png')


@pytest.mark.parametrize(
    'scope, args, message',
    [
        (None, ['missing.py'], 'no config at missing.py'),
        ('mmagic', ['user.py'], "got 'mmagic'"),
    ],
    ids=['missing', 'scope'],
)
def test_a_wrong_config_is_named(tool, scope, args, message):
    Path('user.py').write_text(f'default_scope = {scope!r}')
    with pytest.raises(SystemExit, match=message):
        tool('browse_dataset', *args)


def test_a_package_without_the_tool_is_named(monkeypatch):
    with pytest.raises(SystemExit, match='pip install --force-reinstall --no-deps on'):
        package_tool.find_tool('mmseg', 'visualization/browse_dataset.py')
    monkeypatch.setattr(package_tool.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit, match='mmseg is not installed: pip install onedl-'):
        package_tool.find_tool('mmseg', 'misc/print_config.py')
