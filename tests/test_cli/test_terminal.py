"""Errors and tables of command lines."""

import argparse
import sys
from pathlib import Path
from zipfile import BadZipFile

import pytest

import mmattn
from mmattn.cli.terminal import (
    add_config,
    add_model,
    config_file,
    config_of,
    parse_run,
    run_main,
)
from mmattn.engine.data.checked_dataset import DataError
from mmattn.errors import MissingPackageError, UserError

CONFIGS = Path(mmattn.__file__).parents[1] / 'configs'


def fail(error, cause=None):
    raise error from cause


@pytest.mark.parametrize(
    ('error', 'cause', 'message'),
    [
        (UserError('size must be positive'), None, 'a_tool: size must be positive'),
        (DataError('sample 3: cut'), BadZipFile('cut'), 'a_tool: sample 3: cut'),
        (MissingPackageError('pip install it'), None, 'a_tool: pip install it'),
        (FileNotFoundError(2, 'No such file', 'a.txt'), None, "a_tool: .*'a.txt'"),
    ],
)
def test_errors_of_the_user_are_one_message(monkeypatch, error, cause, message):
    monkeypatch.setattr(sys, 'argv', ['tools/a_tool.py'])
    with pytest.raises(SystemExit, match=message):
        run_main(lambda: fail(error, cause))


@pytest.mark.parametrize(
    ('error', 'cause'),
    [
        (ValueError('of a library'), None),
        (ImportError('of a library'), None),
        # The cause is a mistake in a transform of a user.
        (UserError('sample 3: gt'), KeyError('gt')),
        (UserError('sample 3: gt'), TypeError('gt')),
    ],
)
def test_other_errors_keep_their_traceback(error, cause):
    with pytest.raises(type(error)):
        run_main(lambda: fail(error, cause))


BROKEN = {
    'a = 1\nb = c\n': "line 2, is no config: NameError: name 'c' is not defined",
    'a = (\n': "line 1, is no config: SyntaxError: '(' was never closed",
    "raise KeyError('a\\nb')": 'line 1, is no config: KeyError: ',
    'custom_imports = dict(imports=3)': 'is no config: TypeError: ',
}


@pytest.mark.parametrize(('text', 'message'), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_config_is_told_in_one_line(tmp_path, text, message):
    path = tmp_path / 'broken.py'
    path.write_text(text)
    args = argparse.Namespace(config=str(path), cfg_options=None)
    with pytest.raises(SystemExit) as told:
        run_main(lambda: config_of(args))
    told = str(told.value)
    assert message in told and str(path) in told and '\n' not in told


def test_config_files(tmp_path):
    path, other = tmp_path / 'config.py', tmp_path / 'README.md'
    path.touch()
    other.touch()
    assert config_file(str(path)) == str(path)
    ours = config_file('ivit_t_3x_coco')
    assert Path(ours).samefile(CONFIGS / 'mask_rcnn/ivit_t_3x_coco.py')
    for name, message in (
        ('nosuch.py', 'no config file at nosuch.py'),
        (tmp_path, f'no config .* {tmp_path}'),
        (other, 'of .py, .*, got .*README'),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            config_file(str(name))


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    add_model(parser)
    parser.add_argument('--out')
    return parser


def test_a_work_dir_stands_for_its_config_and_checkpoint(
    parser, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    best = 'run/best_coco_segm_mAP_epoch_1.pth'
    Path('run').mkdir()
    Path('run/cells.py').write_text('a = 1')
    for name in (best, 'run/epoch_2.pth', 'b.pth'):
        Path(name).touch()
    args = parse_run(parser, ['run', '--out=a'])
    assert (args.config, args.checkpoint) == ('run/cells.py', best)
    assert capsys.readouterr().err == f'run/cells.py, {best}\n'
    for given, taken in (('b.pth', 'b.pth'), ('last', 'run/epoch_2.pth')):
        args = parse_run(parser, ['run', '--weights', given])
        assert args.checkpoint == taken and config_of(args).a == 1
    Path('run/cells.py').write_text('a = open("b", "w")')
    with pytest.raises(SystemExit):
        parse_run(parser, ['run'])
    assert 'is no data' in capsys.readouterr().err and not Path('b').exists()


def test_a_config_requires_a_checkpoint(parser, tmp_path, capsys):
    path = tmp_path / 'a.py'
    path.touch()
    address, options = 'http://a/d.pth', ['--cfg-options', 'c=1']
    args = parse_run(parser, [str(path), '--out', 'b', '--weights', address, *options])
    assert (args.config, args.checkpoint, args.out) == (str(path), address, 'b')
    assert args.cfg_options == dict(c=1)
    with pytest.raises(SystemExit):
        parse_run(parser, [str(path)])
    assert f'{path} comes without weights' in capsys.readouterr().err
    options = ['--cfg-options', 'a=1', 'b']
    with pytest.raises(SystemExit):
        parse_run(parser, [str(path), '--weights', address, *options])
    assert "--cfg-options must be key=value, got 'b'" in capsys.readouterr().err


def test_a_list_replaces_a_tuple_as_a_tuple(tmp_path):
    """mmsegmentation's RandomCrop accepts nothing else."""
    config = tmp_path / 'config.py'
    config.write_text('pipeline = [dict(crop_size=(512, 512), scales=[1], size=8)]')
    parser = argparse.ArgumentParser()
    add_config(parser)
    names = 'crop_size=[64,64]', 'scales=[2,3]', 'size=[4,5]', 'new.a=[6,7]'
    options = [f'pipeline.0.{name}' for name in names]
    args = parser.parse_args([str(config), '--cfg-options', *options])
    (found,) = config_of(args).pipeline
    new = dict(scales=[2, 3], size=[4, 5], new={'a': [6, 7]})
    assert found == dict(crop_size=(64, 64), **new)
