"""Checkpoints of every format are read as they were saved, or refused."""

import sys
from argparse import Namespace
from collections import OrderedDict
from types import ModuleType

import numpy as np
import pytest
import torch
from calls import Calls
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file
from tiny_run import Tiny, make_runner

from mmattn.engine import UntrustedCheckpointError, read_checkpoint, trusted_checkpoints
from mmattn.weights import read as reader


def round_trip(value, tmp_path, **kwargs):
    path = tmp_path / 'saved.pth'
    torch.save(value, path, **kwargs)
    return read_checkpoint(path)


NUMPY = {
    'fortran': np.asfortranarray(np.arange(6).reshape(2, 3)),
    'big-endian': np.array([1, 2], '>i4'),
    'bool': np.array([True, False]),
    'empty': np.zeros((0, 3)),
    'bool-scalar': np.True_,
    'state': np.random.RandomState(0).get_state()[1],
}


@pytest.mark.parametrize('value', NUMPY.values(), ids=NUMPY)
def test_numpy_data_is_read_as_it_was(tmp_path, value):
    for zipped in (True, False):
        kwargs = dict(_use_new_zipfile_serialization=zipped)
        (read,) = round_trip({'in': [(value,)]}, tmp_path, **kwargs)['in'][0]
        assert type(read) is type(value)
        assert read.dtype == value.dtype
        assert np.array_equal(read, value)


def test_other_formats_are_read(tmp_path):
    namespace = Namespace(lr=0.1, scale=np.float64(2))  # DeiT, PVT, timm
    weights = OrderedDict(w=torch.ones(2))
    weights._metadata = {'': dict(version=2)}
    meta = dict(CLASSES=('a', 'b'), cfg=ConfigDict(a=dict(b=1)), part=slice(1, 2))
    read = round_trip(dict(model=weights, args=namespace, meta=meta), tmp_path)
    assert read['args'] == namespace
    assert read['meta'] == meta
    assert isinstance(read['meta']['cfg'].a, ConfigDict)
    assert read['model']._metadata == weights._metadata


def test_a_yacs_config_becomes_a_plain_dict(tmp_path, monkeypatch):
    module = ModuleType('yacs.config')
    CfgNode = type('CfgNode', (dict,), {'__module__': 'yacs.config'})
    module.CfgNode = CfgNode
    node = CfgNode(LR=0.1)
    node.frozen = True  # yacs keeps attributes beside the items
    monkeypatch.setitem(sys.modules, 'yacs', ModuleType('yacs'))
    monkeypatch.setitem(sys.modules, 'yacs.config', module)
    torch.save(dict(config=node), tmp_path / 'swin.pth')
    monkeypatch.undo()
    config = read_checkpoint(tmp_path / 'swin.pth')['config']
    assert config == {'LR': 0.1}
    assert type(config) is OrderedDict


def test_getattr_of_a_statistic_is_its_name(tmp_path):
    names = ['min', 'max', 'mean', 'current']
    forged = [Calls(getattr, HistoryBuffer, name) for name in names]
    assert round_trip(forged, tmp_path) == names


def test_a_history_cannot_change_its_class(tmp_path, monkeypatch):
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    methods = dict(statistics_methods={'mean': torch.Tensor}, update='mine')
    forged = history.__getstate__() | methods
    monkeypatch.setattr(HistoryBuffer, '__getstate__', lambda self: forged)
    before = dict(HistoryBuffer._statistics_methods)
    (read,) = round_trip([history], tmp_path)
    assert HistoryBuffer._statistics_methods == before
    assert type(read) is HistoryBuffer
    assert read.statistics('mean') == 2
    read.update(5.0)
    assert read.current() == 5


def test_a_forged_dtype_is_not_believed(tmp_path):
    """numpy itself takes doubles flagged as object references for pointers."""
    state = 3, '<', None, None, None, -1, -1, 63
    flagged = Calls(np.dtype, 'f8', False, True, state=state)
    array = np.arange(2.0)
    rebuild, arguments, (version, shape, _, order, data) = array.__reduce__()
    state = (version, shape, flagged, order, data)
    (read,) = round_trip([Calls(rebuild, *arguments, state=state)], tmp_path)
    assert read.tolist() == [0, 1]
    assert not read.dtype.hasobject


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    'spoil', [truncate, lambda path: path.write_text('<p>404')], ids=['cut', 'web page']
)
def test_what_is_no_checkpoint_is_named(tmp_path, spoil):
    path = tmp_path / 'spoilt.pth'
    torch.save(Tiny().state_dict(), path)
    spoil(path)
    with pytest.raises(ValueError, match='spoilt.pth is not a readable checkpoint'):
        read_checkpoint(path)


def test_torchscript_needs_trust(tmp_path):
    path = tmp_path / 'script.pth'
    torch.jit.script(torch.nn.Linear(1, 1)).save(path)
    with pytest.raises(UntrustedCheckpointError, match='TorchScript'):
        read_checkpoint(path)


def test_safetensors(tmp_path):
    weights = {key: value.clone() for key, value in Tiny().state_dict().items()}
    path = tmp_path / 'tiny.safetensors'
    save_file(weights, path)
    read = read_checkpoint(path, map_location='cpu')
    assert all(torch.equal(read[key], weights[key]) for key in weights)
    make_runner(tmp_path / 'run', load_from=str(path)).load_or_resume()
    truncate(path)
    with pytest.raises(ValueError, match='tiny.safetensors is not a readable'):
        read_checkpoint(path)


def test_safetensors_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'safetensors.torch', None)
    with pytest.raises(ImportError, match='pip install safetensors'):
        read_checkpoint(tmp_path / 'tiny.safetensors')


def test_an_old_pytorch_is_not_relied_on(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, 'SAFE_TORCH', (99, 0))
    message = 'CVE-2026-24747.*pip install -U torch.*safetensors'
    with pytest.raises(ValueError, match=message):
        round_trip(torch.ones(1), tmp_path)
    with trusted_checkpoints():
        assert round_trip(torch.ones(1), tmp_path) == 1
