"""Learned maps of another size: against interpolation written out tap by tap."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from layer_checks import randn
from resampling import cubic, linear, resized
from torch import nn
from torch.testing import assert_close

from mmattn.models import PVT, HMaiT, LiSANet, MaiT, MaskedCaiT, ViT
from mmattn.models.layers import (
    DeformableAttention,
    RelativeMaskedAttention,
    WindowAttention,
)
from mmattn.models.layers.resize import interpolate_in_order, resize_grid

PYRAMID = dict(embed_dims=(8, 16, 32, 64), depths=(1,) * 4, num_heads=(1, 2, 4, 8))
SWIN = dict(PYRAMID, masked_heads=(1, 2, 1, 0))
PLAIN = dict(embed_dims=(32,), depths=(1,), mlp_ratios=(2,), conv_stages=0, patterns=3)
VIT = dict(embed_dims=48, depth=1, num_heads=3)


@pytest.mark.parametrize('mode, kernel', [('bicubic', cubic), ('bilinear', linear)])
def test_every_size(mode, kernel):
    for size in ((23, 23), (6, 11), (1, 4), (13, 7), (1, 1)):
        for shape in ((13, 7), (3, 2, 13, 7)):
            x = randn(*shape)
            assert_close(resize_grid(x, size, mode=mode), resized(x, size, kernel))
    x = randn(2, 7, 7, dtype=torch.bfloat16)  # rounded once
    expected = resize_grid(x.float(), (12, 5), mode=mode).bfloat16()
    assert torch.equal(resize_grid(x, (12, 5), mode=mode), expected)


@pytest.mark.parametrize('mode', ['bicubic', 'bilinear'])
def test_products_interpolate_the_same(mode):
    x, settings = randn(2, 3, 7, 5), dict(mode=mode, align_corners=False)
    x.requires_grad_()
    for size in ((9, 4), (1, 11), (7, 5)):
        outs = [f(x, size, **settings) for f in (F.interpolate, interpolate_in_order)]
        assert_close(*outs)
        grad = randn(*outs[0].shape)
        assert_close(*(torch.autograd.grad(out, x, grad) for out in outs))


def offsets(grid):
    return tuple(2 * side - 1 for side in grid)


def swin_table(table, grid):
    """Rows of offsets, a column for each head, as a map of each head."""
    return table.t().unflatten(1, offsets(grid))


def tokens(pos_embed, grid):
    """Show the tokens that follow two special ones, if there are any."""
    special = pos_embed.shape[1] - grid[0] * grid[1]
    assert special in (0, 2)
    return pos_embed[0, special:].t().unflatten(1, grid)


def full_table(grid):
    return RelativeMaskedAttention(12, 3, 1, table_grid=grid, clip=False)


def deformable(grid, version):
    return DeformableAttention(12, 6, 3, grid, kernel_size=3, version=version)


def network(kind, arch, stride=16, **kwargs):
    return lambda grid: kind(arch, img_size=[side * stride for side in grid], **kwargs)


# What is built for a grid, and the view of its learned map as (..., H, W).
TABLES = {
    'windows': (lambda grid: WindowAttention(8, 2, grid[0]), swin_table),
    'all offsets': (full_table, swin_table),
    'DAT': (partial(deformable, version=1), lambda table, grid: table),
    'DAT++': (partial(deformable, version=2), lambda table, grid: table),
    'ViT': (network(ViT, VIT, attention='mhsa'), tokens),
    'MaiT': (network(MaiT, VIT, distilled=True), tokens),
    'masked CaiT': (network(MaskedCaiT, VIT), tokens),
    'LiSANet': (network(LiSANet, PLAIN), tokens),
    'H-MaiT': (network(HMaiT, SWIN, 4, position='absolute'), tokens),
    'PVT': (network(PVT, dict(PVT.arch_zoo['nano'], depths=(1,) * 4), 4), tokens),
}
KEYS = 'relative_position_bias_table', 'rpe_table', 'pos_embed'


@pytest.mark.parametrize('old, new', [((16, 16), (8, 8)), ((8, 8), (12, 20))], ids=str)
@pytest.mark.parametrize('name', TABLES)
def test_loaded_maps(name, old, new):
    build, view = TABLES[name]
    if name == 'windows':  # which are square
        new = (new[0], new[0])
    if name == 'PVT':  # whose last stage is an eighth of the first
        old, new = (tuple(side * 2 for side in grid) for grid in (old, new))
    source, model = build(old).double(), build(new).double()
    table, other = (
        next(p for n, p in net.named_parameters() if n.endswith(KEYS))
        for net in (source, model)
    )
    table.data = randn(*table.shape)
    model.load_state_dict(source.state_dict())
    given, loaded = view(table.detach(), old), view(other.detach(), new)
    kernel = linear if name == 'PVT' else cubic
    expected = resized(given, loaded.shape[-2:], kernel)
    assert_close(loaded, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('grid', [(2, 9), (1, 1)], ids=str)
def test_tables_of_all_offsets_at_run_time(grid):
    layer = full_table((4, 3)).double()
    nn.init.normal_(layer.relative_position_bias_table)
    given = swin_table(layer.relative_position_bias_table, (4, 3))
    assert_close(layer.table(grid), resized(given, offsets(grid)))
