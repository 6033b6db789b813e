"""The mixers: limits in which they are exact, gradients, and their settings."""

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
from projects.attention_zoo.lara import LARAAttention
from projects.attention_zoo.local import LocalAttention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention
from projects.attention_zoo.performer import (
    PerformerAttention,
    draw_features,
    kernel_attention,
    log_features,
)
from projects.attention_zoo.scatterbrain import ScatterbrainAttention
from projects.attention_zoo.small_mixers import (
    HEADS,
    WIDTH,
    D,
    every_mixer,
    heads_of,
    make,
    maps,
    output_of,
)


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
