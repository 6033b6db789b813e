"""The mixers beside their definitions, written out map by map and query by query."""

import math

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip('mmengine')


from projects.attention_zoo.combiner import CombinerAttention
from projects.attention_zoo.eva import EVAAttention
from projects.attention_zoo.lara import randomized_attention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention, pseudoinverse
from projects.attention_zoo.performer import log_features
from projects.attention_zoo.scatterbrain import ScatterbrainAttention
from projects.attention_zoo.small_mixers import (
    HEADS,
    D,
    heads_of,
    make,
    maps,
    output_of,
    positions,
)


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
