"""Spectra that a layer keeps in evaluation: when, for which grids, never stale."""

import copy
import pickle

import pytest
import torch
from layer_checks import randn
from torch import nn
from torch.testing import assert_close

import mmattn.models.layers.structure_aware.attention as layer_module
from mmattn.models.layers import StructureAwareAttention


def build(**kwargs):
    torch.manual_seed(0)
    return StructureAwareAttention(24, 3, (7, 6), patterns=4, **kwargs).double()


@torch.no_grad()
def evaluate(layer, *grid):
    return layer(randn(2, *grid, 24))


@pytest.fixture
def made(monkeypatch):
    """Grids for which spectra are computed."""
    grids = []
    spectrum = layer_module.circular_kernel_spectrum

    def counting(w, grid, **kwargs):
        grids.append(tuple(grid))
        return spectrum(w, grid, **kwargs)

    monkeypatch.setattr(layer_module, 'circular_kernel_spectrum', counting)
    return grids


GRIDS = [(7, 6), (5, 9), (7, 6), (8, 8), (7, 6), (5, 9)]


@pytest.mark.parametrize(
    'cache_size, expected', [(2, [(7, 6), (5, 9), (8, 8), (5, 9)]), (0, GRIDS)]
)
def test_spectra_of_the_last_grids_are_kept_in_eval(cache_size, expected, made):
    layer = build(cache_size=cache_size).eval()
    for grid in GRIDS:
        evaluate(layer, *grid)
        assert len(layer.cache) <= cache_size
    assert made[::2] == expected
    assert not any('cache' in name or 'spectr' in name for name in layer.state_dict())


def test_nothing_is_kept_in_training_or_for_gradients(made):
    layer = build()
    for _ in range(2):
        evaluate(layer, 7, 6)
    layer.eval()
    evaluate(layer, 7, 6)
    for _ in range(2):
        layer(randn(2, 7, 6, 24))
    assert len(made) == 2 * 5
    layer.train()
    assert len(layer.cache) == 0


def step(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(randn(2, 5, 9, 24)).square().sum().backward()
    optimizer.step()


@torch.no_grad()
def edit_in_place(layer):
    layer.w_b.mul_(2)


def replace_parameter(layer):
    layer.w_b = nn.Parameter(layer.w_b.detach() * 2)


def edit_data(layer):
    """As mmengine's EMA hook swaps weights; the version does not count it."""
    layer.w_a.data[0, 0, 0, 0] += 1


def to_half_and_back(layer):
    layer.half().double()


def load(layer):
    weights = layer.state_dict()
    layer.load_state_dict({name: 2 * value for name, value in weights.items()})


@pytest.mark.parametrize(
    'change',
    [step, edit_in_place, replace_parameter, edit_data, load, to_half_and_back],
    ids=lambda change: change.__name__,
)
def test_kept_spectra_never_outlive_their_kernels(change):
    layer = build().eval()
    before = evaluate(layer, 5, 9)
    change(layer)
    after = evaluate(layer, 5, 9)
    assert not torch.equal(after, before)
    assert torch.equal(after, evaluate(copy.deepcopy(layer), 5, 9))


def test_copies_start_without_spectra():
    layer = build(cache_size=3).eval()
    evaluate(layer, 7, 6)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.cache.size == 3 and len(other.cache) == 0
        assert torch.equal(evaluate(other, 7, 6), evaluate(layer, 7, 6))


def test_compiled_layers_read_their_kernels_anew():
    layer, x = build().eval(), randn(2, 7, 6, 24)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend='eager')
        assert_close(layer(x), compiled(x))
        edit_in_place(layer)
        assert_close(compiled(x), layer(x))
