"""A module converts its own part of a state dict, and can be pickled and copied."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mmattn.models import PVT
from mmattn.weights.layouts.load_hook import load_hook


@load_hook
def take_old_names(module, weights):
    return {name.replace('old', 'weight'): value for name, value in weights.items()}


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_load_state_dict_pre_hook(take_old_names)


def test_names_outside_the_module_stay():
    net = nn.ModuleDict(dict(a=Scale(), old=nn.Linear(2, 2)))
    weights = {'a.old': torch.zeros(2), **net.state_dict()}
    del weights['a.weight']
    given = dict(weights)
    net.load_state_dict(weights)
    assert net['a'].weight.tolist() == [0, 0]
    assert weights == given


def hooks(module):
    return [hook.hook for hook in module._load_state_dict_pre_hooks.values()]


@pytest.mark.parametrize('build', [Scale, lambda: PVT('nano')])
def test_copies_keep_the_hook(build):
    source = build()
    for clone in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert hooks(clone)[0] is hooks(source)[0]
