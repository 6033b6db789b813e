"""Learned maps of another size: against interpolation written out tap by tap."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
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


def draw(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def test_two_numbers_become_four():
    expected = [-0.10546875, 0.2265625, 0.7734375, 1.10546875]
    assert resize_grid(torch.tensor([[0.0, 1.0]]), (1, 4)).tolist() == [expected]
    expected = [0.0, 0.25, 0.75, 1.0]
    out = resize_grid(torch.tensor([[0.0, 1.0]]), (1, 4), mode='bilinear')
    assert out.tolist() == [expected]


@pytest.mark.parametrize('mode, kernel', [('bicubic', cubic), ('bilinear', linear)])
def test_every_size(mode, kernel):
    for size in ((23, 23), (6, 11), (1, 4), (13, 7), (1, 1)):
        for shape in ((13, 7), (3, 2, 13, 7)):
            x = draw(*shape)
            assert_close(resize_grid(x, size, mode=mode), resized(x, size, kernel))
    x = draw(2, 7, 7, dtype=torch.bfloat16)  # rounded once
    expected = resize_grid(x.float(), (12, 5), mode=mode).bfloat16()
    assert torch.equal(resize_grid(x, (12, 5), mode=mode), expected)


@pytest.mark.parametrize('mode', ['bicubic', 'bilinear'])
def test_products_interpolate_the_same(mode):
    x, settings = (
        draw(2, 3, 7, 5).requires_grad_(),
        dict(mode=mode, align_corners=False),
    )
    for size in ((9, 4), (1, 11), (7, 5)):
        outs = [f(x, size, **settings) for f in (F.interpolate, interpolate_in_order)]
        assert_close(*outs)
        grad = draw(*outs[0].shape)
        assert_close(*(torch.autograd.grad(out, x, grad) for out in outs))


def offsets(grid):
    return tuple(2 * side - 1 for side in grid)


def as_it_is(table, grid):
    return table


def swin_table(table, grid):
    """Rows of offsets, a column for each head, as a map of each head."""
    return table.t().unflatten(1, offsets(grid))


def tokens(pos_embed, grid, num_special=0):
    return pos_embed[0, num_special:].t().unflatten(1, grid)


def window(grid):
    return WindowAttention(8, 2, grid[0])


def full_table(grid):
    return RelativeMaskedAttention(12, 3, 1, table_grid=grid, clip=False)


def deformable(grid, version):
    return DeformableAttention(12, 6, 3, grid, kernel_size=3, version=version)


def image_side(grid, patch_size=16):
    return tuple(side * patch_size for side in grid)


def plain(kind, arch):
    return lambda grid: kind(arch, img_size=image_side(grid))


def pyramid(kind, arch, **kwargs):
    return lambda grid: kind(arch, img_size=image_side(grid, 4), **kwargs)


# What is built for a grid; the learned map; its view (..., H, W); the kernel.
TABLES = {
    'windows': (window, 'relative_position_bias_table', swin_table, cubic),
    'all offsets': (full_table, 'relative_position_bias_table', swin_table, cubic),
    'DAT': (partial(deformable, version=1), 'rpe_table', as_it_is, cubic),
    'DAT++': (partial(deformable, version=2), 'rpe_table', as_it_is, cubic),
    'ViT': (plain(partial(ViT, attention='mhsa'), VIT), 'pos_embed', tokens, cubic),
    'MaiT': (
        plain(partial(MaiT, distilled=True), VIT),
        'pos_embed',
        partial(tokens, num_special=2),
        cubic,
    ),
    'masked CaiT': (plain(MaskedCaiT, VIT), 'pos_embed', tokens, cubic),
    'LiSANet': (plain(LiSANet, PLAIN), 'pos_embed', tokens, cubic),
    'H-MaiT': (pyramid(HMaiT, SWIN, position='absolute'), 'pos_embed', tokens, cubic),
    'PVT': (
        pyramid(PVT, dict(PVT.arch_zoo['nano'], depths=(1,) * 4)),
        'pos_embed',
        tokens,
        linear,
    ),
}


@pytest.mark.parametrize('old, new', [((16, 16), (8, 8)), ((8, 8), (12, 20))], ids=str)
@pytest.mark.parametrize('name', TABLES)
def test_loaded_maps(name, old, new):
    build, key, view, kernel = TABLES[name]
    if name == 'windows':  # which are square
        new = (new[0], new[0])
    if name == 'PVT':  # whose last stage is an eighth of the first
        old, new = (tuple(side * 2 for side in grid) for grid in (old, new))
    source, model = build(old).double(), build(new).double()
    table, other = (
        next(p for n, p in net.named_parameters() if n.endswith(key))
        for net in (source, model)
    )
    table.data = draw(*table.shape)
    model.load_state_dict(source.state_dict())
    given, loaded = view(table.detach(), old), view(other.detach(), new)
    expected = resized(given, loaded.shape[-2:], kernel)
    assert_close(loaded, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('grid', [(2, 9), (1, 1)], ids=str)
def test_tables_of_all_offsets_at_run_time(grid):
    layer = full_table((4, 3)).double()
    nn.init.normal_(layer.relative_position_bias_table)
    given = swin_table(layer.relative_position_bias_table, (4, 3))
    assert_close(layer.table(grid), resized(given, offsets(grid)))
