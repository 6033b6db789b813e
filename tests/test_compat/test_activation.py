"""`mmcv._ext` is ours where mmcv has none, and only there; activating costs nothing."""

import importlib.util
import sys

import pytest
import transformers
from fresh import run_python

from mmattn import compat


def words(code, *paths, flags=()):
    """Return the words that a fresh interpreter prints."""
    return run_python(*flags, '-c', code, paths=paths).stdout.split()


def make_package(folder, name, **modules):
    package = folder / name
    package.mkdir()
    for module, source in {'__init__': '', **modules}.items():
        (package / f'{module}.py').write_text(source)


def test_importing_mmattn_imports_neither_torch_nor_mm():
    code = (
        'import mmattn, sys\n'
        'mmattn.compat.activate()\n'
        "print(*{name.split('.')[0] for name in sys.modules})\n"
    )
    loaded = {*words(code)} - {'mmattn'}
    assert not loaded & {'torch', 'torchvision', 'numpy', 'triton'}
    assert not any(name.startswith('mm') for name in loaded)


def test_an_mmcv_without_operators_gets_ours(tmp_path):
    make_package(tmp_path, 'mmcv')
    code = (
        'import mmattn, importlib.util, sys\n'
        "print(importlib.util.find_spec('mmcv._ext').origin)\n"
        "print('torch' in sys.modules)\n"
    )
    assert words(code, tmp_path) == [compat.IMPLEMENTATION, 'False']


@pytest.mark.parametrize('first', ['mmattn', 'mmcv'])
def test_a_compiled_mmcv_wins(tmp_path, first):
    make_package(tmp_path, 'mmcv', _ext="nms = 'compiled'")
    code = (
        f'import {first}, mmattn, mmcv._ext; print(mmcv._ext.nms, mmcv._ext.__file__)'
    )
    assert words(code, tmp_path) == ['compiled', str(tmp_path / 'mmcv/_ext.py')]


def test_without_mmcv_there_is_no_extension(tmp_path):
    make_package(tmp_path, 'other')
    code = (
        'import mmattn, importlib.util\n'
        'try:\n'
        '    import mmcv._ext\n'
        'except ModuleNotFoundError as error:\n'
        '    print(error.name)\n'
        "print(importlib.util.find_spec('other._ext'))\n"
    )
    # -S leaves out site-packages.
    assert words(code, tmp_path, flags=['-S']) == ['mmcv', 'None']


def test_the_table_names_what_is_in_force():
    rows = {row.module for row in compat.CORRECTIONS}
    for module in rows:
        importlib.import_module(module)
    if int(transformers.__version__.partition('.')[0]) < 5:
        rows.remove('mmpretrain.utils.dependency')
    assert {row.module for row in compat.in_force()} == rows


def test_mmcv_takes_our_extension():
    from mmcv.ops import get_compiler_version, get_compiling_cuda_version
    from mmcv.utils import ext_loader

    ours = ext_loader.load_ext('_ext', ['nms', 'carafe_forward'])
    assert ours.nms.__module__ == 'mmattn.compat.mmcv_ops'
    assert isinstance(get_compiler_version(), str)
    assert isinstance(get_compiling_cuda_version(), str)
    assert importlib.util.find_spec('mmcv._ext').loader is not None
    if hasattr(ext_loader, 'check_ops_exist') and sys.version_info < (3, 14):
        assert ext_loader.check_ops_exist()


def test_other_operators_say_how_to_get_them(our_ops, monkeypatch):
    import torch
    from mmcv.ops import tin_shift

    # `mmcv.ops.tin_shift` is the function; the module is only in sys.modules.
    monkeypatch.setattr(sys.modules['mmcv.ops.tin_shift'], 'ext_module', our_ops)
    with pytest.raises(NotImplementedError, match="'tin_shift_forward'.*pip install"):
        tin_shift(torch.ones(1, 2, 4, 4), torch.ones(1, 2))


def test_only_operators_are_stood_in_for(our_ops):
    assert our_ops.any_operator.__name__ == 'any_operator'
    with pytest.raises(AttributeError, match='__wrapped__'):
        _ = our_ops.__wrapped__
