"""The forward of masked attention by tiles."""

import importlib

import pytest
import torch
from torch.testing import assert_close

from tools.benchmark.inputs import make_masked_inputs

torch_impl, torch_stencil, torch_tiles, reference = (
    importlib.import_module(f'mmattn.ops.masked_attention.{name}')
    for name in ('torch_impl', 'torch_stencil', 'torch_tiles', 'reference')
)
HARD = dict(kernel_size=3, num_special=0, mask_fill='zero')


def make(grid, bias=False, B=2, **options):
    """Return q, k and v as views of one tensor, and the bias."""
    options |= dict(grid=grid, B=B, num_special=0, dtype=torch.float64)
    q, k, v, bias, _ = make_masked_inputs(bias=bias, **options)
    return *torch.stack([q, k, v], 2).unbind(2), bias


@pytest.mark.parametrize('bias', [False, True], ids=['no bias', 'bias'])
@pytest.mark.parametrize('grid', [(8, 8), (8, 20), (20, 12)], ids=str)
def test_tiles_are_the_stencil(grid, bias):
    inputs = make(grid, bias)
    expected = torch_stencil.forward(*inputs, grid=grid, **HARD)
    assert_close(torch_tiles.forward(*inputs, grid=grid, **HARD), expected)


@pytest.mark.parametrize('elements', [1, 6 * 10**3])
def test_chunks_of_any_size(monkeypatch, elements):
    inputs = make((12, 8), bias=True, B=3)
    expected = torch_tiles.forward(*inputs, grid=(12, 8), **HARD)
    monkeypatch.setattr(torch_tiles, 'CHUNK_ELEMENTS', elements)
    assert_close(torch_tiles.forward(*inputs, grid=(12, 8), **HARD), expected)


def test_scores_that_overflow():
    q, *others = make((8, 8), bias=True)
    inputs = 1e4 * q, *others
    expected = torch_stencil.forward(*inputs, grid=(8, 8), **HARD)
    out, lse = torch_tiles.forward(*inputs, grid=(8, 8), **HARD)
    assert out.isfinite().all()
    assert_close((out, lse), expected)


def test_key_reaches_its_neighbors_alone():
    q, k, v, _ = make((8, 12), B=1)
    k = k.clone()
    k[0, 3 * 12 + 4] = torch.nan  # in the halos of four tiles
    out = torch_tiles.forward(q, k, v, None, grid=(8, 12), **HARD)[0]
    spoiled = ~out.isfinite().all(-1).all(-1).view(8, 12)
    assert spoiled[2:5, 3:6].all() and spoiled.sum() == 9


@pytest.mark.parametrize(
    'served, change',
    [
        (True, {}),
        (False, dict(kernel_size=5)),
        (False, dict(num_special=1)),
        (False, dict(mask_fill='neg_inf')),
        (False, dict(grid=(20, 18))),
        (False, dict(grid=(18, 20))),
        (False, dict(grid=(4, 80))),
    ],
    ids=str,
)
def test_calls_that_take_tiles(monkeypatch, served, change):
    for module, name in ((torch_tiles, 'tiles'), (torch_stencil, 'stencil')):
        monkeypatch.setattr(module, 'forward', lambda *_, name=name, **__: name)
    call = dict(HARD, grid=(20, 20)) | change
    tokens = call['grid'][0] * call['grid'][1] + call['num_special']
    q = torch.empty(1, tokens, 1, 4)
    chosen = torch_impl.forward(q, q, q, None, None, **call)
    assert chosen == ('tiles' if served else 'stencil')
