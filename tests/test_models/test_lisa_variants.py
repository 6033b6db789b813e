"""The mixers of LiSA's ablations: their parameters, their equations, other grids."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from mmattn.models import LiSANet
from mmattn.models.layers import StructureAwareAttention
from mmattn.models.layers.structure_aware.variants import (
    VARIANTS,
    LocalStructureAwareAttention,
    PatternAttention,
    RelativeAttention,
    SelfAttention,
)
from mmattn.ops.structure_aware_attention import (
    block_toeplitz,
    local_structure_aware_attention,
    pattern_attention,
    relative_attention,
)
from tools.benchmark.tolerances import assert_close

C, M, K, R = 24, 3, 2, 3
GRID = (4, 5)
GRIDS = [(4, 5), (1, 1), (3, 5), (7, 6)]

every_mixer = pytest.mark.parametrize('name', VARIANTS)


def build(name, grid=GRID, dtype=torch.float64):
    """With weights large enough that all parts matter."""
    torch.manual_seed(0)
    layer = VARIANTS[name](C, M, grid, K, R)
    for param in layer.parameters():
        torch.nn.init.normal_(param, std=0.3)
    return layer.to(dtype)


def draw(*grid, B=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, *grid, C, generator=generator, dtype=torch.float64)
    return x.to(dtype)


@pytest.mark.parametrize(
    'name, operator, biases',
    [
        ('self_attention', 0, 4),
        ('self_attention_rpe', 27**2, 0),
        ('self_attention_rpes', 12 * 27**2, 0),
        ('sa_eq9', 27**2, 0),
        ('sa_eq9_rpes', 12 * 27**2, 0),
        ('sa_eq10', 2 * 16 * 27**2 + 16 * 16, 0),
        ('sa_eq11', 16 * 16 * 27**2 + 16 * 27**2 + 16 * 16, 0),
        ('local', 16 * 17 * 5**2 + 16 * 16, 3 + 2),  # two of the layer norm
    ],
)
def test_parameters_of_the_papers_network(name, operator, biases):
    with torch.device('meta'):
        layer = VARIANTS[name](192, 12, (14, 14), 16, 5)
    params = sum(p.numel() for p in layer.parameters())
    assert params == 4 * 192**2 + biases * 192 + operator


def softmax_attention(q, k, v, table=None):
    scores = torch.einsum('bimd,bjmd->bmij', q, k) / math.sqrt(q.shape[-1])
    if table is not None:
        scores = scores + block_toeplitz(table)
    return torch.einsum('bmij,bjmd->bimd', scores.softmax(-1), v)


OPERATORS = {
    'self_attention': lambda w, *qkv: softmax_attention(*qkv),
    'self_attention_rpe': lambda w, *qkv: softmax_attention(*qkv, w.table),
    'self_attention_rpes': lambda w, *qkv: softmax_attention(*qkv, w.table),
    'sa_eq9': lambda w, *qkv: relative_attention(*qkv, w.table[0]),
    'sa_eq9_rpes': lambda w, *qkv: relative_attention(*qkv, w.table),
    'sa_eq10': lambda w, *qkv: pattern_attention(*qkv, w.table_a, w.table_b, w.bias),
    'sa_eq11': lambda w, *qkv: pattern_attention(*qkv, w.table_a, w.table_b, w.bias),
    'local': lambda w, *qkv: local_structure_aware_attention(
        *qkv, w.w_a, w.w_b, w.bias, grid=GRID
    ),
}


@every_mixer
def test_mixer_is_its_operator_between_projections(name):
    layer, x = build(name), draw(*GRID)
    B, H, W, _ = x.shape
    qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias).view(B, H * W, 3, M, -1)
    out = OPERATORS[name](layer, *qkv.unbind(2)).reshape(B, H, W, C)
    if name == 'local':
        out = F.layer_norm(out, (C,), layer.norm.weight, layer.norm.bias, 1e-6)
    expected = F.linear(out, layer.proj.weight, layer.proj.bias)
    assert_close('out', expected, layer(x))


@every_mixer
@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_any_grid_and_every_parameter_gets_a_gradient(name, grid):
    layer, x = build(name), draw(*grid).requires_grad_()
    out = layer(x)
    assert out.shape == x.shape and out.isfinite().all()
    out.square().sum().backward()
    one_score = grid == (1, 1) and 'self_attention' in name  # its softmax is 1
    for param_name, param in [('x', x), *layer.named_parameters()]:
        if one_score and param_name == 'table':
            continue
        assert param.grad is not None and param.grad.abs().max() > 0, param_name


@pytest.mark.parametrize('name', [n for n in VARIANTS if n != 'self_attention'])
def test_start_has_the_scale_of_the_values(name):
    """As LiSA's own kernels: no map vanishes or grows when the training starts."""
    torch.manual_seed(0)
    layer = VARIANTS[name](192, 12, (14, 14), 16, R)
    q, k, v = torch.randn(3, 1, 196, 12, 16).unbind()
    with torch.no_grad():
        out = layer.mix(q, k, v, (14, 14))
    assert 0.05 < out.std() < 3


def test_resized_tables_keep_the_middle_and_the_extent():
    """A ramp between two ends stays one, and its middle is the query's own position."""
    layer = RelativeAttention(C, M, (8, 8)).double()
    ramp = torch.arange(-7.0, 8.0, dtype=torch.float64)
    layer.table.data[0] = ramp[:, None].expand(15, 15)
    for side in (8, 5, 13):
        other = RelativeAttention(C, M, (side, side)).double()
        other.load_state_dict(layer.state_dict())
        column = other.table[0, :, 0]
        assert_close('odd', -column.flip(0), column, torch.float32)
        assert (column.diff() > 0).all() and 6 < column[-1] < 8
    layer.table.data.copy_(torch.randn(1, 15, 15))
    pixel = RelativeAttention(C, M, (1, 1)).double()
    pixel.load_state_dict(layer.state_dict())
    assert_close('own position', layer.table[:, 7:8, 7:8], pixel.table, torch.float32)


@pytest.mark.parametrize('name', [n for n in VARIANTS if n != 'local'])
def test_checkpoints_of_another_grid(name):
    """The loaded layer computes the same as the other layer at run time."""
    layer, x = build(name), draw(6, 3)
    state = layer.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    other = build(name, grid=(6, 3))
    other.load_state_dict(state)
    assert_close('out', layer(x), other(x), torch.float32)
    assert all(torch.equal(state[key], kept[key]) for key in kept)


def test_another_number_of_tables_is_an_error():
    layer, other = build('self_attention_rpe'), build('self_attention_rpes')
    with pytest.raises(RuntimeError, match='size mismatch for table'):
        other.load_state_dict(layer.state_dict())


def test_local_kernels_know_no_grid():
    layer = build('local')
    x = draw(9, 9)
    out = layer(x)
    shifted = layer(x.roll((2, 1), (1, 2)))  # alike where no border is near
    inner = slice(4, 7)
    assert_close('shift', out[:, 2:5, 3:6], shifted[:, inner, inner])


@every_mixer
def test_autocast(name):
    layer, x = build(name, dtype=torch.float32), draw(*GRID, dtype=torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        out = layer(x)
        out.float().square().mean().backward()
    assert out.dtype == torch.bfloat16
    expected = layer(x)
    assert (out - expected).norm() < 0.02 * expected.norm()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@every_mixer
def test_compiles_in_one_graph(name):
    layer, x = build(name, dtype=torch.float32), draw(*GRID, dtype=torch.float32)
    torch.compiler.reset()  # mixers share a forward, whose graphs are limited in number
    compiled = torch.compile(layer, backend='eager', fullgraph=True)
    assert_close('out', layer(x), compiled(x))
    exported = torch.export.export(layer.eval(), (x,)).module()
    assert_close('out', layer(x), exported(x))


@every_mixer
def test_copies(name):
    layer, x = build(name), draw(*GRID)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@every_mixer
def test_networks_of_the_ablation(name):
    """`patterns` and `local_kernel` arrive, and other sizes than 224 run."""
    arch = dict(
        embed_dims=(32,), depths=(2,), mlp_ratios=(4,), conv_stages=0, patterns=K
    )
    net = LiSANet(arch, mixer=name, local_kernel=5, img_size=64)
    for block in net.blocks[0]:
        mixer = block.mixer
        assert type(mixer) is type(build(name)) and mixer.num_heads == 2
        assert getattr(mixer, 'bias', torch.empty(16, K)).shape == (16, K)
        if name == 'local':
            assert mixer.w_b.shape == (K, 5, 5)
    net(torch.randn(1, 3, 48, 80))[0].sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_default_is_lisa():
    mixer = LiSANet('isotropic').blocks[0][0].mixer
    assert type(mixer) is StructureAwareAttention


WRONG = {
    'heads': (lambda: SelfAttention(C, 5, GRID), '24 channels .* 5 heads'),
    'softmax tables': (lambda: SelfAttention(C, M, GRID, tables=2), 'got 2'),
    'tables': (lambda: RelativeAttention(C, M, GRID, tables=2), '1 or 3 heads, got 2'),
    'patterns': (lambda: PatternAttention(C, M, GRID, patterns=0), 'got 0'),
    'local patterns': (
        lambda: LocalStructureAwareAttention(C, M, patterns=0, local_kernel=3),
        'got 0',
    ),
    'even kernel': (
        lambda: LocalStructureAwareAttention(C, M, patterns=1, local_kernel=4),
        'odd, got 4',
    ),
}


@pytest.mark.parametrize('make, match', WRONG.values(), ids=WRONG)
def test_errors(make, match):
    with pytest.raises(ValueError, match=match):
        make()
