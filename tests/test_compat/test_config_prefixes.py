"""`mmseg::` and `mmattn::` bases resolve, whichever of the packages comes first."""

import re
from types import SimpleNamespace

import pytest
from fresh import run_python

from mmattn.compat import mm_packages
from mmattn.files.config_files import find_config

BASES = {
    'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py': 'decode_head',
    'mmseg::_base_/models/upernet_swin.py': 'decode_head',
    'mmattn::mask_rcnn/ivit_t_3x_coco.py': 'roi_head',
}


@pytest.mark.parametrize('order', ['mmattn, mmengine', 'mmengine, mmattn'])
def test_bases_resolve(tmp_path, order):
    code = f'import {order}\nfrom mmengine.config import Config\n'
    for number, (base, head) in enumerate(BASES.items()):
        config = tmp_path / f'user{number}.py'
        config.write_text(f'_base_ = {base!r}\n')
        code += f'print({head!r} in Config.fromfile({str(config)!r}).model)\n'
    assert run_python('-c', code).stdout.split() == ['True'] * len(BASES)


def test_mmengine_keeps_its_loader_and_the_entries_survive_a_reload():
    code = (
        'import mmattn, sys\n'
        'count = len(sys.meta_path)\n'
        'import importlib, inspect, mmengine.config.utils as utils\n'
        'print(type(utils.__loader__).__name__, type(utils.__spec__.loader).__name__)\n'
        "print('MODULE2PACKAGE' in inspect.getsource(utils))\n"
        'importlib.reload(utils)\n'
        "print(utils.MODULE2PACKAGE['mmattn'])\n"
        'mmattn.compat.activate()\n'
        'print(len(sys.meta_path) - count)\n'
    )
    loader = 'SourceFileLoader'
    said = run_python('-c', code).stdout.split()
    assert said == [loader, loader, 'True', 'mmattn', '0']


@pytest.mark.parametrize(
    ('installed', 'expected'),
    [
        (['onedl-mmsegmentation'], 'mmseg'),
        (['mmsegmentation', 'onedl-mmsegmentation'], 'mmsegmentation'),
        ([], 'mmsegmentation'),
    ],
)
def test_table_names_the_distribution_that_is_there(monkeypatch, installed, expected):
    monkeypatch.setattr(mm_packages, '_is_installed', installed.__contains__)
    table = {'mmdet': 'mmdet', 'mmseg': 'mmsegmentation'}
    for _ in range(2):
        mm_packages.correct_table(SimpleNamespace(MODULE2PACKAGE=table))
        assert table == {'mmdet': 'mmdet', 'mmseg': expected, 'mmattn': 'mmattn'}


def test_an_unknown_config_is_named_with_those_close_to_it():
    from mmengine.config import Config

    wrong = "_base_ = 'mmattn::mask_rcnn/ivit_tiny_3x_coco.py'"
    message = 'mmattn::mask_rcnn/ivit_tiny_3x_coco.py does not exist.*closest are '
    with pytest.raises(FileNotFoundError, match=message) as caught:
        Config.fromstring(wrong, '.py')
    assert 'mask_rcnn/ivit_t_3x_coco.py' in str(caught.value)
    with pytest.raises(FileNotFoundError, match='no name is close to it'):
        find_config('0')


def test_a_base_is_found_by_its_whole_path_only(tmp_path):
    base = tmp_path / 'configs/_base_/models/upernet.py'
    base.parent.mkdir(parents=True)
    base.touch()
    package = tmp_path / 'mmattn'
    for suffix in ('', '.py'):
        assert find_config(f'_base_/models/upernet{suffix}', package) == base
    with pytest.raises(FileNotFoundError, match='no name is close to it'):
        find_config('upernet', package)


def test_an_mmattn_without_configs_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=f'{re.escape(str(tmp_path))}.*clone'):
        find_config('mask_rcnn/ivit_t_3x_coco.py', package=tmp_path / 'mmattn')
