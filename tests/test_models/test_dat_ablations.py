"""Arguments of DAT, DAT++ and their attention that the papers' ablations change."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from mmattn.analysis.sampling_points import mean_attention
from mmattn.models import DAT, DATPlusPlus
from mmattn.models.backbones.dat import PatchEmbed as PaddedPatchEmbed
from mmattn.models.layers import (
    DeformableAttention,
    NeighborhoodAttention,
    PointwiseMlp,
    SpatialReductionAttention,
    WindowAttention,
)
from mmattn.models.layers.deformable_attention import sample_map
from mmattn.models.layers.deformable_positions import POSITIONS

C, M, G = 12, 6, 3
GRID = (4, 5)
EXACT = dict(rtol=1e-10, atol=1e-10)
versions = pytest.mark.parametrize('version', [1, 2])
ABLATIONS = [position for position in POSITIONS if position != 'table']


def build(table_grid=GRID, **kwargs):
    torch.manual_seed(0)
    kwargs = dict(kernel_size=3) | kwargs
    layer = DeformableAttention(C, M, G, table_grid, **kwargs).double()
    for param in layer.parameters():
        torch.nn.init.normal_(param, std=0.5)
    return layer


def image(*grid, B=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, *grid, C, generator=generator, dtype=torch.float64)


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
    B, H, W, _ = x.shape
    q = layer.proj_q(x)
    positions = layer.positions(q)
    maps = x.permute(0, 3, 1, 2).reshape(B * G, C // G, H, W)
    points = positions.reshape(B * G, 1, -1, 2)
    samples = F.grid_sample(maps, points, align_corners=True)
    samples = samples.reshape(B, C, -1).transpose(1, 2)
    q, k, v = (
        tokens.reshape(B, -1, M, C // M).transpose(1, 2)
        for tokens in (q, layer.proj_k(samples), layer.proj_v(samples))
    )
    weights = (q @ k.mT / math.sqrt(C // M) + bias).softmax(-1)
    return layer.proj_out((weights @ v).transpose(1, 2).reshape(B, H, W, C))


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
@pytest.mark.parametrize('grid', [GRID, (1, 1), (7, 3)], ids=str)
def test_any_grid_and_every_parameter_gets_a_gradient(position, grid, version):
    layer = build(version=version, position=position, stride=2)
    x = image(*grid).requires_grad_()
    out = layer(x)
    assert out.shape == x.shape and out.isfinite().all()
    out.square().sum().backward()
    for name, param in [('x', x), *layer.named_parameters()]:
        assert param.grad is not None, name
        if grid != (1, 1) and name != 'proj_k.bias':  # they change no weight
            assert param.grad.abs().max() > 0, name


@pytest.mark.parametrize('position', POSITIONS)
def test_drawn_attention_has_the_bias(position):
    """Values that are one in a channel tell how much its keys are attended to."""
    layer = build(position=position)
    x = image(*GRID, B=1)
    positions = layer.sampled_positions(x)
    rows = torch.tensor([3, 11, 12])
    mean = mean_attention(layer, x, positions, rows)  # (G, K)
    one_hot = torch.eye(20, dtype=torch.float64)
    q, k = (
        tokens.reshape(1, -1, M, C // M)
        for tokens in (layer.proj_q(x), layer.proj_k(sample_map(x, positions)))
    )
    v = one_hot[None, :, None].expand(1, 20, M, 20)
    if position == 'dwc':  # adds to the result, not to the scores
        layer.position = 'none'
    if position == 'table':
        bias = table_bias(layer, positions)
        weights = torch.einsum('bnmd,bkmd->bmnk', q, k) / math.sqrt(C // M) + bias
        weights = weights.softmax(-1).transpose(1, 2)
    else:
        weights = layer.attend(q, k, v, GRID, positions)  # (B, N, M, K)
    expected = weights[0, rows].mean(0).unflatten(0, (G, M // G)).mean(1)
    assert_close(mean, expected, **EXACT)


def table_bias(layer, positions):
    H, W = GRID
    rows, columns = (torch.linspace(-1, 1, n, dtype=torch.float64) for n in (H, W))
    queries = torch.stack(torch.meshgrid(columns, rows, indexing='xy'), -1).view(-1, 2)
    displacement = (queries[:, None] - positions[0, :, None]) / 2
    tables = layer.rpe_table.unflatten(0, (G, M // G))
    return F.grid_sample(tables, displacement, align_corners=True).flatten(0, 1)


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


def test_ranges_of_the_versions():
    first = build(version=1, offset_range=2.0)
    assert_close(build(version=1)(image(*GRID)), first(image(*GRID)), **EXACT)
    far = build(version=1, offset_range=-1)
    far.conv_offset[3].weight.data.mul_(1e3)
    assert far.sampled_positions(image(*GRID)).abs().max() == 1


# --- networks -----------------------------------------------------------------------

DAT_T = 28_319_138 - 769_000  # without the classifier
DAT_PLUS_PLUS_T = 23_962_876 - 513_000
PARAMETERS = [  # as in the README of the configs
    (DAT, dict(), 0),
    (DAT, dict(offsets=False), -13_312),
    (DAT, dict(position='none'), -30_300),
    (DAT, dict(position='fixed'), 1_410_300),
    (DAT, dict(position='dwc'), -11_100),
    (DAT, dict(position='log-cpb'), -29_404),
    (DAT, dict(offset_range=4), 0),
    (DAT, dict(blocks=('LS', 'LS', 'LS', 'LD')), -31_680),
    (DAT, dict(blocks=('LS', 'LS', 'LS', 'LS')), -33_472),
    (DAT, dict(blocks=('P', 'P', 'LD', 'LD')), 2_357_982),
    (DATPlusPlus, dict(), 0),
    (DATPlusPlus, dict(lpu=False), -62_720),
    (DATPlusPlus, dict(conv_mlp=False), -250_880),
    (DATPlusPlus, dict(conv_stem=False), -876_480),
    (DATPlusPlus, dict(lpu=False, conv_mlp=False, conv_stem=False), -1_190_080),
    (DATPlusPlus, dict(blocks='DDDD'), 117_168),
    (DATPlusPlus, dict(blocks=('LD', 'LD', 'LD', 'D')), 0),
]


@pytest.mark.parametrize('cls, options, added', PARAMETERS, ids=str)
def test_parameters(cls, options, added):
    with torch.device('meta'):
        model = cls('tiny', out_indices=3, **options)
    whole = DAT_T if cls is DAT else DAT_PLUS_PLUS_T
    assert sum(p.numel() for p in model.parameters()) == whole + added


SMALL = dict(
    embed_dims=(16, 32, 48, 64),
    depths=(2, 2, 2, 1),
    num_heads=(1, 2, 3, 4),
    num_groups=(1, 2, 3, 4),
)


def attentions(model):
    return [[block.attn for block in layer.blocks] for layer in model.stages]


@pytest.mark.parametrize('cls', [DAT, DATPlusPlus])
def test_blocks_of_each_stage(cls):
    model = cls(SMALL, img_size=64, blocks=('LS', 'ND', 'D', 'N'), backend=None)
    (a, b), (c, d), (e, f), (g,) = attentions(model)
    assert (type(a), a.shift) == (WindowAttention, 0)
    assert (type(b), b.shift) == (WindowAttention, 4)
    assert type(c) is type(g) is NeighborhoodAttention
    assert type(d) is type(e) is type(f) is DeformableAttention
    (out,) = model(torch.randn(1, 3, 40, 72))[-1:]
    assert out.shape == (1, 64, 2, 3)


@pytest.mark.parametrize('cls', [DAT, DATPlusPlus])
def test_spatial_reductions_are_those_of_pvt(cls):
    model = cls(SMALL, img_size=64, blocks='PPPP')
    for stage, ratio in zip(attentions(model), (8, 4, 2, 1), strict=True):
        for attn in stage:
            assert type(attn) is SpatialReductionAttention
            assert attn.sr_ratio == ratio
    assert model(torch.randn(1, 3, 40, 72))[-1].shape == (1, 64, 2, 3)


def test_blocks_by_default():
    """Those of the papers, for any depth."""
    arch = dict(SMALL, depths=(3, 2, 4, 1), num_groups=(0, 0, 3, 4))
    kinds = [
        ['D' if type(a) is DeformableAttention else a.shift for a in stage]
        for stage in attentions(DAT(arch, img_size=64))
    ]
    assert kinds == [[4, 0, 4], [0, 4], [0, 'D', 0, 'D'], ['D']]
    arch = dict(SMALL, depths=(3, 2, 4, 2))
    kinds = [
        [type(a) is DeformableAttention for a in stage]
        for stage in attentions(DATPlusPlus(arch, img_size=64))
    ]
    assert kinds == [[False, True, False], [False, True], [False, True] * 2, [True] * 2]


@pytest.mark.parametrize('cls', [DAT, DATPlusPlus])
def test_settings_reach_the_attention(cls):
    model = cls(
        SMALL,
        img_size=64,
        blocks='DDDD',
        offset_strides=(4, 3, 2, 1),
        offset_range=0.5,
        position='log-cpb',
    )
    for stage, stride in zip(attentions(model), (4, 3, 2, 1), strict=True):
        for attn in stage:
            assert attn.stride == attn.conv_offset[0].stride[0] == stride
            assert attn.offset_range == 0.5 and attn.position == 'log-cpb'
    model = cls(SMALL, img_size=64, blocks='DDDD', offsets=False)
    assert all(a.conv_offset is None for stage in attentions(model) for a in stage)


@pytest.mark.parametrize('switch', ['lpu', 'conv_mlp', 'conv_stem', 'all'])
def test_parts_of_dat_plus_plus(switch):
    """Their parameters, and that the network without them runs at any size."""
    switches = ['lpu', 'conv_mlp', 'conv_stem']
    off = dict.fromkeys(switches if switch == 'all' else [switch], False)
    model, whole = (
        DATPlusPlus(SMALL, img_size=64, **off),
        DATPlusPlus(SMALL, img_size=64),
    )
    dims = [
        c
        for c, n in zip(SMALL['embed_dims'], SMALL['depths'], strict=True)
        for _ in range(n)
    ]
    a, b, c, d = SMALL['embed_dims']
    conv_stem = 27 * 8 + 3 * 8 + 9 * 8 * a - 48 * a + 5 * (a * b + b * c + c * d)
    parameters = dict(
        lpu=sum(10 * dim for dim in dims),
        conv_mlp=sum(10 * 4 * dim for dim in dims),
        conv_stem=conv_stem,
    )
    counts = [sum(p.numel() for p in m.parameters()) for m in (whole, model)]
    assert counts[0] - counts[1] == sum(parameters[name] for name in off)
    for block in (block for layer in model.stages for block in layer.blocks):
        assert (block.lpu is None) == ('lpu' in off)
        assert (type(block.mlp) is PointwiseMlp) == ('conv_mlp' in off)
    assert (type(model.stem) is PaddedPatchEmbed) == ('conv_stem' in off)
    outs = model(torch.randn(1, 3, 33, 70))
    assert [out.shape[2:] for out in outs] == [
        out.shape[2:] for out in whole(torch.randn(1, 3, 33, 70))
    ]


@pytest.mark.parametrize(
    'make, match',
    [
        (lambda: build(position='cpb'), "position must be one of .*, got 'cpb'"),
        (lambda: DAT(SMALL, blocks=('LX',) * 4), "letters of 'LSNPD' .* got .*LX"),
        (lambda: DAT(SMALL, blocks=('L',)), 'each of 4 stages'),
        (
            lambda: DAT(dict(SMALL, num_groups=(0, 1, 1, 1)), blocks='DLLL'),
            "blocks 'D' of stage 0 need a number of groups",
        ),
    ],
    ids=['position', 'letters', 'stages', 'groups'],
)
def test_errors(make, match):
    with pytest.raises(ValueError, match=match):
        make()
