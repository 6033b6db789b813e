"""The mixers: limits in which they are exact, dense oracles, and gradients."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.testing import assert_close

pytest.importorskip('mmengine')


from mmattn.models.backbones.vit import SelfAttention
from mmattn.models.layers import WindowAttention
from mmattn.ops import neighborhood_attention
from projects.attention_zoo.combiner import CombinerAttention
from projects.attention_zoo.eva import EVAAttention
from projects.attention_zoo.lara import LARAAttention, randomized_attention
from projects.attention_zoo.local import LocalAttention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention, pseudoinverse
from projects.attention_zoo.performer import (
    PerformerAttention,
    draw_features,
    kernel_attention,
    log_features,
)
from projects.attention_zoo.scatterbrain import ScatterbrainAttention
from projects.attention_zoo.small_mixers import HEADS, SMALL, WIDTH, every_mixer

D = WIDTH // HEADS


def make(mixer, **settings):
    torch.manual_seed(0)
    layer = mixer(WIDTH, HEADS, **SMALL[mixer] | settings).double().eval()
    for parameter in layer.parameters():  # initial values are too near zero
        torch.nn.init.normal_(parameter, std=0.4)
    return layer


def maps(height, width, batch=2):
    return torch.randn(batch, height, width, WIDTH, dtype=torch.float64)


def heads_of(layer, x):
    """Return q, k and v of shape (B, M, N, D) by slices of the projection."""
    qkv = layer.qkv(x).flatten(1, 2)
    parts = qkv.split(WIDTH, -1)
    return [torch.stack(part.split(D, -1), 1) for part in parts]


def output_of(layer, heads, x):
    """Project the heads' outputs (B, M, N, D)."""
    return layer.proj(torch.cat(heads.unbind(1), -1)).view_as(x)


def positions(height, width):
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
    return y.flatten(), x.flatten()


def dense(layer, x):
    q, k, v = heads_of(layer, x)
    return output_of(layer, (q @ k.mT / D**0.5).softmax(-1) @ v, x)


@every_mixer
@pytest.mark.parametrize('grid', [(1, 1), (7, 5), (1, 6), (4, 4)], ids=str)
def test_any_map(mixer, grid):
    layer, x = make(mixer), maps(*grid)
    out = layer(x)
    assert out.shape == x.shape and out.isfinite().all()
    assert_close(layer(x), out)
    # Images of a batch do not see each other.
    assert_close(layer(x[1:]), out[1:])
    assert layer(x[:0]).shape == (0, *grid, WIDTH)


@every_mixer
def test_gradients(mixer):
    layer, x = make(mixer), maps(3, 5, batch=1).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(call, (x, *parameters), fast_mode=True)
    grads = torch.autograd.grad(layer.train()(x).square().sum(), (x, *parameters))
    for name, grad in zip(('x', *names), grads, strict=True):
        assert grad.isfinite().all() and grad.any(), name


@every_mixer
def test_large_scores_stay_finite(mixer):
    layer, x = make(mixer).float(), 30 * maps(7, 5).float()
    x.requires_grad_()
    out = layer(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert out.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize(
    'layer, settings',
    [
        (LocalAttention, dict(window=9)),
        (NystromAttention, dict(landmarks=9, iterations=None, conv_kernel=None)),
        (NystromAttention, dict(landmarks=9, iterations=40, conv_kernel=None)),
        (ScatterbrainAttention, dict(window=9)),
        (CombinerAttention, dict(window=9)),
        (CombinerAttention, dict(window=1)),
        (CombinerAttention, dict(window=1, summary='max')),
        (LongShortAttention, dict(window=9, rank=0, dual_norm=False)),
    ],
)
def test_limits_are_softmax_attention(layer, settings):
    mixer, x = make(layer, **settings), maps(3, 4)
    if layer is LocalAttention:
        torch.nn.init.zeros_(mixer.bias_table)
    expected = SelfAttention(WIDTH, HEADS).double()
    expected.load_state_dict(
        {name: mixer.state_dict()[name] for name in expected.state_dict()}
    )
    assert_close(mixer(x), expected(x), atol=1e-8, rtol=1e-6)
    assert_close(dense(mixer, x), expected(x))


@pytest.mark.parametrize('grid', [(6, 9), (7, 5), (2, 4)], ids=str)
def test_local_is_window_attention(grid):
    layer, x = make(LocalAttention, window=3), maps(*grid)
    expected = WindowAttention(WIDTH, HEADS, window_size=3).double()
    weights = layer.state_dict()
    expected.load_state_dict(
        {
            'proj_qkv.weight': weights['qkv.weight'],
            'proj_qkv.bias': weights['qkv.bias'],
            'proj_out.weight': weights['proj.weight'],
            'proj_out.bias': weights['proj.bias'],
            'relative_position_bias_table': weights['bias_table'].flatten(1).mT,
        }
    )
    assert_close(layer(x), expected(x))


def test_local_is_neighborhood_attention_on_one_window():
    """All neighborhoods of a 5 x 5 map are the map. Their offsets are key - query."""
    layer, x = make(LocalAttention, window=5), maps(5, 5)
    q, k, v = (t.transpose(1, 2).unflatten(1, (5, 5)) for t in heads_of(layer, x))
    out = neighborhood_attention(q, k, v, layer.bias_table.flip(1, 2))
    assert_close(layer(x), layer.proj(out.flatten(3)))


def test_features_estimate_the_kernel_without_bias():
    torch.manual_seed(0)
    x, y = 0.3 * torch.randn(2, 5, D).double()
    kernel = (x @ y.mT).exp()
    variances = {}
    for num_features in (4, 16, 64):
        directions = draw_features(4000, num_features, D).double()
        estimates = (
            log_features(x, directions).exp() @ log_features(y, directions).exp().mT
        )  # (draw, 5, 5)
        standard_error = estimates.std(0) / 4000**0.5
        assert ((estimates.mean(0) - kernel).abs() < 4.5 * standard_error).all()
        variances[num_features] = estimates.var(0).mean()
    # Blocks of orthogonal directions are independent, so 1 / F holds.
    assert 3 < variances[4] / variances[16] < 5.3
    assert 3 < variances[16] / variances[64] < 5.3
    directions = torch.randn(4000, 4, D).double()
    independent = (
        log_features(x, directions).exp() @ log_features(y, directions).exp().mT
    )
    assert variances[4] < 0.95 * independent.var(0).mean()


def test_directions_of_a_block_are_orthogonal():
    torch.manual_seed(0)
    directions = draw_features(3, 10, D)
    for block in directions[:, :4], directions[:, 4:8], directions[:, 8:]:
        gram = block @ block.mT
        assert (
            gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
        ).abs().max() < 1e-5


def test_kernel_attention_is_the_quotient_of_sums():
    torch.manual_seed(0)
    log_q, log_k, v = (torch.randn(2, 7, n).double() for n in (5, 5, 3))
    weights = log_q.exp() @ log_k.exp().mT
    expected = weights @ v / weights.sum(-1, keepdim=True)
    assert_close(kernel_attention(log_q, log_k, v), expected)
    # A common factor of a query's or of all keys' features cancels, however large.
    assert_close(kernel_attention(log_q + 500, log_k - 500, v), expected)


@pytest.mark.parametrize('mixer', [PerformerAttention, ScatterbrainAttention])
def test_many_features_are_softmax_attention(mixer):
    x = maps(4, 4)
    errors = {}
    for num_features in (50, 20000):
        layer = make(mixer, num_features=num_features)
        layer.qkv.weight.data *= 0.4  # large scores need far more features
        errors[num_features] = (layer(x) - dense(layer, x)).abs().max()
    assert errors[20000] < 0.02 < 4 * errors[20000] < errors[50]


@pytest.mark.parametrize('mixer', [PerformerAttention, ScatterbrainAttention])
def test_features_are_redrawn_in_training_alone(mixer):
    layer, x = make(mixer).train(), maps(4, 4)
    assert (layer(x) - layer(x)).abs().max() > 1e-3
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    fixed = make(mixer, redraw=False)
    assert torch.equal(fixed.train()(x), fixed.eval()(x))


def test_pseudoinverse_converges():
    torch.manual_seed(0)
    matrix = (2 * torch.randn(3, 6, 6).double()).softmax(-1)
    exact = torch.linalg.pinv(matrix)
    errors = [(pseudoinverse(matrix, n) - exact).abs().max() for n in (2, 6, 30)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-9


def test_nystrom_map_by_explicit_matrices():
    """Means over cells of the grid are a product with a matrix, on 4 x 6 pixels."""
    layer, x = make(NystromAttention, iterations=None), maps(4, 6)
    q, k, v = heads_of(layer, x)
    rows, columns = positions(4, 6)
    cell = rows // 2 * 2 + columns // 3
    pool = (cell == torch.arange(4)[:, None]).double() / 6
    scale = D**-0.5
    left = (scale * q @ (pool @ k).mT).softmax(-1)
    core = (scale * (pool @ q) @ (pool @ k).mT).softmax(-1)
    right = (scale * (pool @ q) @ k.mT).softmax(-1)
    out = left @ torch.linalg.pinv(core) @ right @ v
    kernel = layer.conv.weight[:, 0, :, 0]  # (M, 3)
    padded = torch.nn.functional.pad(v, (0, 0, 1, 1))
    for i in range(3):
        out = out + kernel[:, i, None, None] * padded[:, :, i : i + 24]
    assert_close(layer(x), output_of(layer, out, x))


def windows_of(grid, window):
    """Return the index of each pixel's window, (N,), in order of the windows."""
    rows, columns = positions(*grid)
    return rows // window * -(-grid[1] // window) + columns // window


@pytest.mark.parametrize('grid', [(4, 6), (5, 3)], ids=str)
def test_scatterbrain_map_is_exact_on_its_support(grid):
    layer, x = make(ScatterbrainAttention), maps(*grid)
    q, k, v = heads_of(layer, x)
    exact = (q @ k.mT / D**0.5).exp()
    features = [log_features(t / D**0.25, layer.directions).exp() for t in (q, k)]
    window = windows_of(grid, 2)
    own = window[:, None] == window
    weights = torch.where(own, exact, features[0] @ features[1].mT)
    out = weights @ v / weights.sum(-1, keepdim=True)
    assert_close(layer(x), output_of(layer, out, x))


@pytest.mark.parametrize('summary', ['mean', 'max'])
@pytest.mark.parametrize('grid', [(4, 6), (5, 3)], ids=str)
def test_combiner_map_factorizes(grid, summary):
    """Build the N x N map, whose rows are distributions, query by query."""
    layer, x = make(CombinerAttention, summary=summary), maps(*grid)
    q, k, v = heads_of(layer, x)
    window = windows_of(grid, 2)
    reduce = torch.mean if summary == 'mean' else torch.amax
    full = torch.zeros(2, HEADS, len(window), len(window), dtype=torch.float64)
    for n in range(len(window)):
        query, scale = q[:, :, n : n + 1], D**-0.5
        for r in window.unique():
            inside = window == r
            if r == window[n]:
                full[:, :, n, inside] = (query @ k[:, :, inside].mT * scale).exp()[
                    :, :, 0
                ]
                continue
            q_r, k_r = (reduce(t[:, :, inside], 2, keepdim=True) for t in (q, k))
            shared = (q_r @ k[:, :, inside].mT * scale).softmax(-1)
            full[:, :, n, inside] = ((query @ k_r.mT * scale).exp() * shared)[:, :, 0]
    full = full / full.sum(-1, keepdim=True)
    assert_close(layer(x), output_of(layer, full @ v, x))


def test_eva_with_a_group_for_each_token():
    """The own token is counted twice, as the own window and as a group."""
    layer, x = make(EVAAttention, window=1, landmarks=9, project=False), maps(4, 3)
    q, k, v = heads_of(layer, x)
    scores = q @ k.mT / D**0.5
    twice = (scores.exp() + (scores + layer.bias_table).exp() * torch.eye(12)).log()
    assert_close(layer(x), output_of(layer, twice.softmax(-1) @ v, x))


@pytest.mark.parametrize('grid', [(4, 6), (5, 3)], ids=str)
def test_eva_query_by_query(grid):
    layer, x = make(EVAAttention), maps(*grid)
    q, k, v = heads_of(layer, x)
    rows, columns = positions(*grid)
    window = windows_of(grid, 2)
    h, w = (-(-side // 2) for side in grid)  # sides of the groups
    group = rows // h * -(-grid[1] // w) + columns // w
    k_groups, v_groups = [], []
    for c in group.unique():
        inside = group == c
        q_c = layer.to_q_group(q[:, :, inside].mean(2, keepdim=True))
        k_c = layer.to_k_group(k[:, :, inside].mean(2, keepdim=True))
        sample = (q_c + k_c) / 2 / D**0.25
        scaled = k[:, :, inside] / D**0.25
        xi = (scaled @ sample.mT - scaled.square().sum(-1, keepdim=True) / 2).exp()
        k_groups.append(k_c)
        v_groups.append(
            (xi * v[:, :, inside]).sum(2, keepdim=True) / xi.sum(2)[..., None]
        )
    k_groups, v_groups = torch.cat(k_groups, 2), torch.cat(v_groups, 2)
    outs = []
    for n in range(len(window)):
        inside = window == window[n]
        keys = torch.cat([k[:, :, inside], k_groups], 2)
        scores = q[:, :, n : n + 1] @ keys.mT / D**0.5
        down, right = (axis[n] - axis[inside] + 1 for axis in (rows, columns))
        scores[..., : inside.sum()] += layer.bias_table[:, down, right][:, None]
        values = torch.cat([v[:, :, inside], v_groups], 2)
        outs.append(scores.softmax(-1) @ values)
    assert_close(layer(x), output_of(layer, torch.cat(outs, 2), x))


def lara_inputs(num_proposals):
    torch.manual_seed(0)
    q, k, v, means, noise = (
        torch.randn(n, D).double() for n in (6, 6, 6, *[num_proposals] * 2)
    )
    return q, k, v, means, means + noise


@pytest.mark.parametrize('coefficient', [0.0, 1.5])
def test_lara_weights_by_the_densities(coefficient):
    """Evaluate the densities of the proposals and of the target one by one."""
    q, k, v, means, samples = lara_inputs(5)
    shares = torch.rand(6, 5).double()
    extra = coefficient * (shares - shares.mean(-1, keepdim=True))

    def density(x, mean):
        squares = (x - mean).square().sum()
        return math.exp(-squares / 2) / (2 * math.pi) ** (D / 2)

    def xi(x, w):
        return (x @ w - x @ x / 2).exp()

    out = torch.zeros_like(v)
    for n in range(6):
        weights, values = [], []
        for c, w in enumerate(samples):
            target = density(w, 0) * xi(q[n], w) * sum(xi(key, w) for key in k)
            proposals = [density(w, mean) for mean in means]
            share = proposals[c] / sum(proposals) + extra[n, c]
            weights.append(share.clamp(min=0) * target / proposals[c])
            xis = torch.stack([xi(key, w) for key in k])
            values.append(xis @ v / xis.sum())
        weights = torch.stack(weights)
        out[n] = weights @ torch.stack(values) / weights.sum()
    query_weights = extra if coefficient else None
    actual = randomized_attention(q, k, v, means, samples, query_weights)
    assert_close(actual, out)
    balance = randomized_attention(q, k, v, means, samples, 0 * extra)
    assert_close(balance, randomized_attention(q, k, v, means, samples))


def test_many_samples_of_lara_are_softmax_attention():
    q, k, v, means, _ = lara_inputs(8)
    q, k = 0.7 * q, 0.7 * k
    expected = (q @ k.mT).softmax(-1) @ v
    errors = {}
    for repeats in (4, 400):
        many = means.repeat(repeats, 1)
        samples = many + torch.randn_like(many)
        errors[repeats] = (
            (randomized_attention(q, k, v, many, samples) - expected).abs().max()
        )
    assert errors[400] < 0.05 < 3 * errors[400] < errors[4]


@pytest.mark.parametrize('grid', [(4, 6), (5, 3)], ids=str)
def test_long_short_query_by_query(grid):
    layer, x = make(LongShortAttention), maps(*grid)
    q, k, v = heads_of(layer, x)
    rows, columns = positions(*grid)
    weights = layer.to_projection(x).flatten(1, 2).softmax(1)  # (B, N, M R)
    weights = torch.stack(weights.split(3, -1), 1)  # (B, M, N, R)

    def norm(heads, layer_norm):
        tokens = layer_norm(torch.cat(heads.unbind(1), -1))
        return torch.stack(tokens.split(D, -1), 1)

    outs = []
    for n in range(len(rows)):
        top, left = rows[n] // 2 * 2, columns[n] // 2 * 2
        near = (rows >= top - 1) & (rows < top + 3)
        near = near & (columns >= left - 1) & (columns < left + 3)
        keys, values = (
            torch.cat(
                [
                    norm(t, layer.norm_short)[:, :, near],
                    norm(weights.mT @ t, layer.norm_long),
                ],
                2,
            )
            for t in (k, v)
        )
        outs.append((q[:, :, n : n + 1] @ keys.mT / D**0.5).softmax(-1) @ values)
    assert_close(layer(x), output_of(layer, torch.cat(outs, 2), x))


@pytest.mark.parametrize(
    'mixer, settings, message',
    [
        (PerformerAttention, dict(num_features=0), 'num_features must be at least 1'),
        (NystromAttention, dict(landmarks=0), 'landmarks must be at least 1, got 0'),
        (NystromAttention, dict(iterations=0), 'iterations must be at least 1'),
        (NystromAttention, dict(conv_kernel=4), 'conv_kernel must be odd'),
        (LARAAttention, dict(landmarks=-1), 'landmarks must be at least 1, got -1'),
        (EVAAttention, dict(landmarks=0), 'landmarks must be at least 1'),
        (LocalAttention, dict(window=0), 'window must be at least 1'),
        (ScatterbrainAttention, dict(window=0), 'window must be at least 1'),
        (CombinerAttention, dict(window=0), 'window must be at least 1'),
        (CombinerAttention, dict(summary='sum'), "one of .*, got 'sum'"),
        (LongShortAttention, dict(window=0), 'window must be at least 1'),
        (LongShortAttention, dict(rank=-1), 'rank must be at least 0, got -1'),
    ],
)
def test_settings_are_checked(mixer, settings, message):
    with pytest.raises(ValueError, match=message):
        make(mixer, **settings)


@every_mixer
def test_unequal_heads_are_refused(mixer):
    with pytest.raises(ValueError, match='9 channels do not split into 2 heads'):
        mixer(9, 2)
