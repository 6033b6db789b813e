"""The entry points of torch.hub."""

from pathlib import Path

import torch

import mmattn

ROOT = str(Path(__file__).parents[1])


def load(name, **kwargs):
    return torch.hub.load(ROOT, name, source='local', **kwargs)


def test_a_clone_loads_backbones_and_classifiers():
    x = torch.rand(1, 4, 32, 32)
    maps = load('ivit_nano', in_channels=4)(x)
    assert [m.shape[1] for m in maps] == [32, 64, 160, 256]
    assert load('pvt_v2_b0', num_classes=7)(x[:, :3]).shape == (1, 7)


def test_each_preset_is_an_entry_point():
    spec = torch.hub._import_module('hubconf', f'{ROOT}/hubconf.py')
    entries = [n for n, v in vars(spec).items() if callable(v) and n[0] != '_']
    assert entries == mmattn.list_models()
    assert 'num_classes' in spec.ivit_nano.__doc__
    torch.hub._check_dependencies(spec)
