"""The operators in LiSA's place: their equations, other grids, networks."""

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip('mmengine')

from projects.lisa_ablations.comparators import InceptionMixer
from projects.lisa_ablations.network import MIXERS
from projects.lisa_ablations.operators import (
    block_toeplitz,
    local_structure_aware_attention,
    pattern_attention,
    relative_attention,
)
from projects.lisa_ablations.variants import (
    LocalStructureAwareAttention,
    PatternAttention,
    RelativeAttention,
    SelfAttention,
)
from tools.benchmark.tolerances import assert_close

C, M, K, R = 24, 2, 3, 3
D = C // M
GRID = (4, 5)
every_mixer = pytest.mark.parametrize('name', MIXERS)


def build(name, grid=GRID, dtype=torch.float64):
    """With weights large enough that all parts matter."""
    torch.manual_seed(0)
    layer = MIXERS[name](C, M, grid, K, R)
    for param in layer.parameters():
        torch.nn.init.normal_(param, std=0.3)
    return layer.to(dtype)


def draw(*grid, B=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, *grid, C, generator=generator, dtype=torch.float64)
    return x.to(dtype)


def heads_of(layer, x):
    """Return q, k and v of shape (B, N, M, D)."""
    qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias)
    return qkv.flatten(1, 2).unflatten(-1, (3, M, D)).unbind(2)


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def projected(operator):
    """Return the equation of a mixer with an operator between its projections."""

    def equation(layer, x):
        out = operator(layer, *heads_of(layer, x)).reshape(x.shape)
        if isinstance(layer.norm, torch.nn.LayerNorm):
            out = F.layer_norm(out, (C,), layer.norm.weight, layer.norm.bias, 1e-6)
        return F.linear(out, layer.proj.weight, layer.proj.bias)

    return equation


def softmax_attention(q, k, v, table=None):
    scores = torch.einsum('bimd,bjmd->bmij', q, k) / math.sqrt(q.shape[-1])
    if table is not None:
        scores = scores + block_toeplitz(table)
    return torch.einsum('bmij,bjmd->bimd', scores.softmax(-1), v)


def depthwise(layer, x):
    conv, proj = layer
    out = F.conv2d(x.permute(0, 3, 1, 2), conv.weight, padding=3, groups=C)
    return out.permute(0, 2, 3, 1) @ proj.weight.t()


def global_filter(layer, x):
    """Convolve with the kernels whose half-spectra the filters are."""
    H, W = GRID
    kernels = torch.fft.irfft2(torch.view_as_complex(layer.weight.data), s=GRID)
    out = torch.zeros_like(x)
    for a in range(H):
        for b in range(W):
            out += kernels[:, a, b] * x.roll((a, b), (1, 2))
    return out @ layer.proj.weight.t()


def lambdas(layer, x):
    """Weigh values by the queries' products with keys and with positions."""
    q, k, v = heads_of(layer, x)
    weights = torch.einsum('bimk,bjmk->bmij', q, k.softmax(1))
    positions = block_toeplitz(layer.table)  # (D, N, N)
    weights = weights + torch.einsum('bimk,kij->bmij', q, positions)
    return torch.einsum('bmij,bjmv->bimv', weights, v).reshape(x.shape)


def convolutional_attention(layer, x):
    qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias).permute(0, 3, 1, 2)
    weight = torch.cat([conv.weight for conv in layer.convs])
    qkv = F.conv2d(qkv, weight, padding=1, groups=3 * C).flatten(2)
    q, k, v = qkv.unflatten(1, (3, M, D)).unbind(1)  # (B, M, D, N)
    weights = (q.mT @ k / math.sqrt(D)).softmax(-1)
    out = (v @ weights.mT).flatten(1, 2).mT.reshape(x.shape)
    return F.linear(out, layer.proj.weight, layer.proj.bias)


def inception(layer, x):
    maps = x.permute(0, 3, 1, 2)

    def pointwise(linear, x):
        return F.conv2d(x, linear.weight[..., None, None], linear.bias)

    a, b, c = maps[:, :4], maps[:, 4:8], maps[:, 8:]
    a = F.conv2d(pointwise(layer.conv_in, a), layer.conv.weight, padding=1, groups=8)
    padded = F.pad(b, (1, 1, 1, 1), value=-math.inf)
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1)
    b = pointwise(layer.pool_in, windows.amax((-2, -1)))
    q, k, v = pointwise(layer.qkv, c).flatten(2).chunk(3, 1)  # one head of 16 channels
    c = (v @ (q.mT @ k / 4).softmax(-1).mT).view_as(c)
    out = torch.cat([F.gelu(a), F.gelu(b), c], 1)
    out = out + F.conv2d(out, layer.fuse.weight, padding=1, groups=32)
    return pointwise(layer.proj, out).permute(0, 2, 3, 1)


def rsa(layer, x):
    """Compute the kernel of each query, and transform what it gathers."""
    q, k, v = (unit(t) for t in heads_of(layer, x))
    h1, h2, g = (
        block_toeplitz(table)
        for table in (layer.table_h1, layer.table_h2, layer.table_g)
    )
    correlation = torch.einsum('bimc,bnmc->bmcin', q, k)
    p = torch.einsum('bmcin,ckin->bmki', correlation, h1)
    p = p + torch.einsum('bimc,ck->bmki', q, layer.kernel)
    kernels = torch.einsum('bmki,kin->bmin', p, h2)
    z = torch.einsum('bmin,bnmv->bimv', kernels, v)
    context = torch.einsum('bimv,bnmv->bmin', z, v)
    out = torch.einsum('bmin,win->bimw', context, g) + z @ layer.identity
    return out.reshape(x.shape) @ layer.proj.weight.t()


EQUATIONS = {
    'self_attention': projected(lambda w, *qkv: softmax_attention(*qkv)),
    **dict.fromkeys(
        ('self_attention_rpe', 'self_attention_rpes'),
        projected(lambda w, *qkv: softmax_attention(*qkv, w.table)),
    ),
    'sa_eq9': projected(lambda w, *qkv: relative_attention(*qkv, w.table[0])),
    'sa_eq9_rpes': projected(lambda w, *qkv: relative_attention(*qkv, w.table)),
    **dict.fromkeys(
        ('sa_eq10', 'sa_eq11'),
        projected(
            lambda w, *qkv: pattern_attention(*qkv, w.table_a, w.table_b, w.bias)
        ),
    ),
    'local': projected(
        lambda w, *qkv: local_structure_aware_attention(
            *qkv, w.w_a, w.w_b, w.bias, grid=GRID
        )
    ),
    'depthwise': depthwise,
    'global_filter': global_filter,
    'lambda': lambdas,
    'convolutional_attention': convolutional_attention,
    'inception': inception,
    'rsa': rsa,
}


@every_mixer
def test_mixer_is_its_equation(name):
    layer, x = build(name), draw(*GRID)
    assert_close('out', EQUATIONS[name](layer, x), layer(x))


@every_mixer
def test_any_grid_and_every_parameter_gets_a_gradient(name):
    for grid in ((1, 1), (7, 6)):
        layer, x = build(name), draw(*grid).requires_grad_()
        out = layer(x)
        assert out.shape == x.shape and out.isfinite().all()
        out.square().sum().backward()
        for param_name, param in [('x', x), *layer.named_parameters()]:
            assert param.grad is not None, param_name
            if grid != (1, 1):  # whose softmax of one score is 1
                assert param.grad.abs().max() > 0, param_name


@every_mixer
def test_checkpoints_of_another_grid(name):
    """The loaded layer computes the same as the other layer at run time."""
    layer, x = build(name), draw(6, 3)
    state = layer.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    other = build(name, grid=(6, 3))
    other.load_state_dict(state)
    assert_close('out', layer(x), other(x), torch.float32)
    assert all(torch.equal(state[key], kept[key]) for key in kept)


@pytest.mark.parametrize(
    'name',
    [
        name
        if name in ('self_attention_rpes', 'sa_eq11', 'rsa')
        else pytest.param(name, marks=pytest.mark.slow)
        for name in MIXERS
    ],
)
def test_compiles_in_one_graph(name):
    layer, x = build(name, dtype=torch.float32), draw(*GRID, dtype=torch.float32)
    torch.compiler.reset()  # mixers share a forward, whose graphs are limited in number
    compiled = torch.compile(layer, backend='eager', fullgraph=True)
    assert_close('out', layer(x), compiled(x))
    exported = torch.export.export(layer.eval(), (x,)).module()
    assert_close('out', layer(x), exported(x))


def loaded(name, other):
    return lambda: other.load_state_dict(build(name).state_dict())


WRONG = {
    'heads': (lambda: SelfAttention(C, 5, GRID), '24 channels .* 5 heads'),
    'softmax tables': (lambda: SelfAttention(C, 3, GRID, tables=2), 'got 2'),
    'tables': (lambda: RelativeAttention(C, 3, GRID, tables=2), '1 or 3 heads, got 2'),
    'patterns': (lambda: PatternAttention(C, M, GRID, patterns=0), 'got 0'),
    'local patterns': (
        lambda: LocalStructureAwareAttention(C, M, patterns=0, local_kernel=3),
        'got 0',
    ),
    'even kernel': (
        lambda: LocalStructureAwareAttention(C, M, patterns=1, local_kernel=4),
        'odd, got 4',
    ),
    'inception': (lambda: InceptionMixer(33, 2), '16 and an even number more .* 33'),
    'clips': (
        lambda: build('lambda', grid=(2, *GRID))(draw(3, *GRID)),
        r'the grid \(2, 4, 5\) .* grid \(3, 4, 5\)',
    ),
    'loaded tables': (
        loaded('self_attention_rpe', build('self_attention_rpes')),
        'size mismatch for table',
    ),
    'loaded filters': (
        loaded('global_filter', MIXERS['global_filter'](C // 2, M, (6, 3), K, 7)),
        'size mismatch for weight',
    ),
}


@pytest.mark.parametrize('make, match', WRONG.values(), ids=WRONG)
def test_errors(make, match):
    with pytest.raises((ValueError, RuntimeError), match=match):
        make()
