"""Arguments of DAT, DAT++ and their attention that the papers' ablations change."""

import math
from functools import partial
from operator import call

import pytest
import torch
import torch.nn.functional as F
from dat_official import deformed
from layer_checks import randn, randomize
from refusals import refuses
from torch.testing import assert_close

from mmattn.models import DAT, DATPlusPlus
from mmattn.models.backbones.dat import PatchEmbed as PaddedPatchEmbed
from mmattn.models.layers import (
    DeformableAttention,
    NeighborhoodAttention,
    PointwiseMlp,
    SpatialReductionAttention,
    WindowAttention,
)
from mmattn.models.layers.deformable_positions import POSITIONS

C, M, G = 12, 6, 3
GRID = (4, 5)
EXACT = dict(rtol=1e-10, atol=1e-10)
versions = pytest.mark.parametrize('version', [1, 2])
ABLATIONS = [position for position in POSITIONS if position != 'table']


def build(table_grid=GRID, **kwargs):
    torch.manual_seed(0)
    kwargs = dict(kernel_size=3) | kwargs
    return randomize(DeformableAttention(C, M, G, table_grid, **kwargs).double(), 0.5)


def image(*grid, B=2):
    return randn(B, *grid, C)


def same_otherwise(layer, **kwargs):
    """Build the layer with another position, and the same other parameters."""
    other = build(**kwargs)
    shared = {k: v for k, v in layer.state_dict().items() if 'rpe_table' not in k}
    other.load_state_dict(shared, strict=False)
    return other


@versions
def test_no_position_is_a_table_of_zeros(version):
    layer = build(version=version)
    none = same_otherwise(layer, version=version, position='none')
    layer.rpe_table.data.zero_()
    x = image(*GRID)
    assert_close(none(x), layer(x), **EXACT)
    assert none.rpe_table is None


@versions
def test_convolution_of_the_queries_is_added_to_the_result(version):
    layer = build(version=version, position='dwc')
    none = same_otherwise(layer, version=version, position='none')
    x = image(*GRID)
    conv = layer.rpe_table
    q = layer.proj_q(x).permute(0, 3, 1, 2)
    added = F.conv2d(q, conv.weight, conv.bias, padding=1, groups=C)
    added = added.permute(0, 2, 3, 1) @ layer.proj_out.weight.t()
    assert_close(layer(x), none(x) + added, **EXACT)


def attention_with(layer, x, bias):
    """Attend with a bias (B, M, N, K), from the layer's parameters."""
    parameters, settings = dict(layer.named_parameters()), (M, G, layer.version, 2)
    out, _ = deformed(parameters, x.permute(0, 3, 1, 2), *settings, bias)
    return out.permute(0, 2, 3, 1)


@versions
def test_fixed_bias_knows_no_offsets(version):
    layer = build(version=version, position='fixed', stride=2)
    keys = 2 * 3
    assert layer.rpe_table.shape == (M, 20, keys)
    x = image(*GRID)
    assert_close(layer(x), attention_with(layer, x, layer.rpe_table), **EXACT)


@versions
def test_bias_of_a_network_of_logarithmic_displacements(version):
    layer = build(version=version, position='log-cpb', stride=2)
    assert layer.rpe_table[0].out_features == 32
    x = image(*GRID)
    positions = layer.sampled_positions(x)  # (B, G, K, 2)
    H, W = GRID
    last = [(side - 1 if version == 2 else side) for side in (H, W)]
    bias = torch.zeros(2, M, H * W, positions.shape[2], dtype=torch.float64)
    for i in range(H * W):
        row, column = divmod(i, W)
        y, x_ = (2 * row + 1 - H) / last[0], (2 * column + 1 - W) / last[1]
        for k in range(positions.shape[2]):
            for g in range(G):
                kx, ky = positions[:, g, k].unbind(-1)
                d = 4 * torch.stack([y - ky, x_ - kx], -1)
                d = d.sign() * torch.log2(d.abs() + 1) / math.log2(8)
                out = layer.rpe_table[2](layer.rpe_table[0](d).relu())
                bias[:, 2 * g : 2 * g + 2, i, k] = out
    assert_close(layer(x), attention_with(layer, x, bias), **EXACT)


@versions
@pytest.mark.parametrize('position', ABLATIONS)
def test_any_grid_and_every_parameter_gets_a_gradient(position, version):
    layer = build(version=version, position=position, stride=2)
    for grid in ((1, 1), (7, 3)):
        layer.zero_grad()
        x = image(*grid).requires_grad_()
        out = layer(x)
        assert out.shape == x.shape and out.isfinite().all()
        out.square().sum().backward()
        for name, param in [('x', x), *layer.named_parameters()]:
            assert param.grad is not None, name
            if grid != (1, 1) and name != 'proj_k.bias':  # they change no weight
                assert param.grad.abs().max() > 0, name


@versions
def test_points_without_offsets(version):
    layer = build(version=version, offsets=False, stride=2)
    assert not any('offset' in name for name, _ in layer.named_parameters())
    (points,) = layer.sampled_positions(image(4, 6, B=1))
    ys, xs = (
        ([-1 / 2, 1 / 2], [-2 / 3, 0, 2 / 3])
        if version == 1
        else ([0, 1], [-0.5, 0.5, 1])
    )
    expected = [[x, y] for y in ys for x in xs]
    expected = torch.tensor(expected, dtype=torch.float64).expand(G, -1, -1)
    assert_close(points, expected)
    x = image(*GRID)
    assert layer(x).shape == x.shape


@versions
def test_offsets_are_in_proportion_to_their_range(version):
    x, moved = image(8, 9), {}
    for steps in (0.5, 2.0):
        layer = build(version=version, offset_range=steps)
        still = build(version=version, offset_range=0.0)
        moved[steps] = layer.sampled_positions(x) - still.sampled_positions(x)
        raw = layer.offsets(layer.proj_q(x)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        sides = torch.tensor([9, 8]) - int(version == 2)
        assert_close(moved[steps], raw.flip(-1).tanh() * steps / sides, **EXACT)
    assert moved[0.5].abs().max() > 0.01


SMALL = dict(
    embed_dims=(16, 32, 48, 64),
    depths=(2, 2, 2, 1),
    num_heads=(1, 2, 3, 4),
    num_groups=(1, 2, 3, 4),
)


def attentions(model):
    kinds = (
        DeformableAttention,
        NeighborhoodAttention,
        SpatialReductionAttention,
        WindowAttention,
    )
    return [m for m in model.modules() if isinstance(m, kinds)]


both = pytest.mark.parametrize('cls', [DAT, DATPlusPlus])


@both
def test_letters_choose_blocks_and_settings_reach_them(cls):
    model = cls(SMALL, img_size=64, blocks=('LS', 'ND', 'D', 'N'), backend=None)
    a, b, c, *deformable, d = attentions(model)
    assert type(a) is type(b) is WindowAttention and (a.shift, b.shift) == (0, 4)
    assert type(c) is type(d) is NeighborhoodAttention
    assert {type(m) for m in deformable} == {DeformableAttention}
    assert model(torch.randn(1, 3, 40, 72))[-1].shape == (1, 64, 2, 3)
    reduced = attentions(cls(SMALL, img_size=64, blocks='PPPP'))
    assert {type(m) for m in reduced} == {SpatialReductionAttention}
    assert [m.sr_ratio for m in reduced] == [8, 8, 4, 4, 2, 2, 1]
    deformed = partial(cls, SMALL, img_size=64, blocks='DDDD')
    settings = dict(offset_range=0.5, position='log-cpb')
    strided = attentions(deformed(offset_strides=(4, 3, 2, 1), **settings))
    for attn, stride in zip(strided, (4, 4, 3, 3, 2, 2, 1), strict=True):
        assert attn.stride == attn.conv_offset[0].stride[0] == stride
        assert settings == {name: getattr(attn, name) for name in settings}
    still = attentions(deformed(offsets=False))
    assert all(attn.conv_offset is None for attn in still)


@pytest.mark.parametrize(
    'switch, kind',
    [('lpu', None), ('conv_mlp', PointwiseMlp), ('conv_stem', PaddedPatchEmbed)],
)
def test_parts_of_dat_plus_plus(switch, kind):
    """The network without them runs at any size; tables count its parameters."""
    whole = DATPlusPlus(SMALL, img_size=64)
    model = DATPlusPlus(SMALL, img_size=64, **{switch: False})
    names = {name for name, _ in model.named_parameters()}
    removed = {name for name, _ in whole.named_parameters()} - names
    part = dict(lpu='lpu', conv_mlp='dwconv', conv_stem='').get(switch)
    assert removed and all(part in name for name in removed)
    if kind is not None:
        assert kind in map(type, model.modules())
        assert kind not in map(type, whole.modules())
    x = torch.randn(1, 3, 33, 70)
    assert [out.shape for out in model(x)] == [out.shape for out in whole(x)]


test_errors = refuses(
    call,
    (lambda: build(position='cpb'), "position must be one of .*, got 'cpb'"),
    (lambda: DAT(SMALL, blocks=('LX',) * 4), "letters of 'LSNPD' .* got .*LX"),
    (lambda: DAT(SMALL, blocks=('L',)), 'each of 4 stages'),
    (lambda: DAT(dict(SMALL, num_groups=(0, 1, 1, 1)), blocks='DLLL'), 'stage 0 need'),
    (lambda: DATPlusPlus(dict(SMALL, depths=(2,) * 3)), 'must have 4 stages'),
    (lambda: NeighborhoodAttention(6, 4), '6 channels do not split into 4 heads'),
    (lambda: NeighborhoodAttention(8, 2, kernel_size=4), 'odd and at least 3, got 4'),
)
