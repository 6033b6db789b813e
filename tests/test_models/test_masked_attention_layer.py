"""MaskedAttention, and which heads of which layers are masked."""

import pytest
import torch
from layer_checks import out_and_gradients, randn
from refusals import refuses
from torch import nn
from torch.testing import assert_close

from mmattn.models.layers import MaskedAttention, resolve_masking
from mmattn.models.layers.masked.masking import LayerMasking
from mmattn.ops import neighborhood_mask

SETTINGS = {
    'hard': dict(),
    'neg-inf': dict(mask_fill='neg_inf'),
    'soft': dict(soft=True),
    'wide': dict(kernel_size=5),
}


def build(masked_heads=2, **kwargs):
    torch.manual_seed(0)
    layer = MaskedAttention(24, 3, masked_heads, **kwargs)
    nn.init.normal_(layer.qkv.weight, std=0.3)
    if layer.alpha_logit is not None:
        nn.init.normal_(layer.alpha_logit)
    return layer.double()


def by_hand(layer, x, grid):
    """Head by head, with the N x N scores."""
    near = neighborhood_mask(grid, layer.kernel_size, layer.num_special)
    alphas = dict(zip(layer.masked_heads, range(len(layer.masked_heads)), strict=True))
    heads = []
    for head in range(3):
        q, k, v = (
            part[..., 8 * head : 8 * head + 8] for part in layer.qkv(x).chunk(3, -1)
        )
        scores = q @ k.mT / 8**0.5
        if head in alphas:
            outside = 0 if layer.mask_fill == 'zero' else -torch.inf
            if layer.alpha_logit is not None:
                outside = scores / (1 + (-layer.alpha_logit[alphas[head]]).exp())
            scores = torch.where(near, scores, outside)
        heads.append(scores.softmax(-1) @ v)
    return layer.proj(torch.cat(heads, -1))


@pytest.mark.parametrize('settings', SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize('masked_heads, num_special', [(1, 0), (3, 1), ((2, 0), 2)])
def test_equals_attention_by_hand(settings, masked_heads, num_special):
    layer = build(masked_heads, num_special=num_special, **settings)
    x, grid = randn(2, num_special + 7 * 5, 24), (7, 5)
    expected = out_and_gradients(layer, lambda x: by_hand(layer, x, grid), x)
    assert_close(out_and_gradients(layer, lambda x: layer(x, grid), x), expected)


def test_alpha_starts_where_asked():
    """Nothing is to be learned where there is no soft mask."""
    for masked_heads, expected in ((2, [0.9] * 2), ((1,), [0.9])):
        layer = MaskedAttention(24, 3, masked_heads, soft=True, alpha_init=0.9)
        assert_close(layer.alpha, torch.tensor(expected))
        assert MaskedAttention(24, 3, masked_heads).alpha is None
    assert MaskedAttention(24, 3, 0, soft=True).alpha_logit is None
    assert (MaskedAttention(24, 3, soft=True).alpha == 0.5).all()


@pytest.mark.parametrize('logit, masked_heads', [(40.0, 0), (-800.0, 2)])
def test_a_soft_mask_ends_in_plain_or_hard_masked_attention(logit, masked_heads):
    layer, end = build(soft=True), build(masked_heads)
    layer.alpha_logit.data.fill_(logit)
    x = randn(2, 20, 24)
    assert_close(layer(x, (4, 5)), end(x, (4, 5)))


def test_backend_is_that_of_the_operator():
    with pytest.raises(ValueError, match="'fpga'"):
        build(backend='fpga')(randn(2, 20, 24), (4, 5))


test_wrong_settings = refuses(
    lambda num_heads=3, **kwargs: MaskedAttention(24, num_heads, **kwargs),
    (dict(num_heads=5), '24 channels do not split into 5'),
    (dict(masked_heads=(0, 3)), r'got \(0, 3\)'),
    (dict(kernel_size=4), 'kernel_size must be odd, got 4'),
    (dict(mask_fill='one'), "'one'"),
    (dict(mask_fill='neg_inf', soft=True), "soft mask, got 'neg_inf'"),
    (dict(alpha_init=0, soft=True), 'between 0 and 1.*got 0'),
    (dict(alpha_init=1.0), 'between 0 and 1.*got 1.0'),
    (dict(alpha_init=float('nan')), 'between 0 and 1.*got nan'),
    (dict(alpha_init='0.5'), "between 0 and 1.*got '0.5'"),
)


@pytest.mark.parametrize(
    'masking, depth, expected',
    [
        ('none', 24, [0] * 24),
        ('sch1', 24, [1] * 24),
        ('sch2', 24, [2] * 8 + [1] * 12 + [0] * 4),
        ('sch2', 12, [2] * 4 + [1] * 6 + [0] * 2),
        ('sch2', 5, [2, 1, 1, 1, 1]),
        ('sch2', 1, [1]),
        ('soft', 24, [3] * 21 + [0] * 3),
        ('soft', 36, [3] * 32 + [0] * 4),
        ('soft', 7, [3] * 7),
    ],
)
def test_schemes(masking, depth, expected):
    """They equal the paper's at 24 layers; masked heads are the lowest."""
    layers = resolve_masking(masking, depth, 3)
    assert [layer.heads for layer in layers] == [tuple(range(n)) for n in expected]
    assert [layer.soft for layer in layers] == [
        masking == 'soft' and n > 0 for n in expected
    ]
    assert resolve_masking(layers, depth, 3) == layers


@pytest.mark.parametrize(
    'entry, heads, soft',
    [
        ('soft', (0, 1, 2), True),
        (dict(heads=2, soft=True), (0, 1), True),
        (dict(heads=(2, 0), soft=True), (0, 2), True),
        (dict(heads=[1]), (1,), False),
        ((2, 0), (0, 2), False),
        (dict(heads=0, soft=True), (), False),
        (LayerMasking((1, 2), True), (1, 2), True),
    ],
    ids=str,
)
def test_layers_of_a_list_have_soft_or_hard_masks(entry, heads, soft):
    expected = [((0,), False), (heads, soft), ((), False)]
    assert resolve_masking([1, entry, 0], 3, 3) == expected


test_wrong_masking = refuses(
    lambda masking: resolve_masking(masking, 3, 3),
    ('sch3', "'sch3'"),
    ([1, 1], 'each of 3 layers, got 2 entries'),
    ([1, 1, 4], 'got 4'),
    ([1, 1, 'sch1'], "'soft' or a dict.*got 'sch1'"),
    ([1, 1, dict(soft=True)], "got {'soft': True}"),
    ([1, 1, dict(heads=1, sotf=True)], "'sotf'"),
    ([1, 1, dict(heads=1, soft=1)], "`soft` must be .*'soft': 1"),
)
