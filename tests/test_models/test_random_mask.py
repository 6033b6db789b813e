"""The random-mask control: what the masks are, and MaiT with them."""

import copy
from functools import partial

import pytest
import torch
from layer_checks import randn
from refusals import refuses
from torch import nn

from mmattn.models import MaiT
from mmattn.models.layers import MaskedAttention, RandomMaskedAttention
from mmattn.models.layers.masked.random_mask import random_mask
from mmattn.ops import neighborhood_mask
from tools.benchmark.tolerances import assert_close

ARCH = dict(embed_dims=48, depth=2, num_heads=3)


@pytest.mark.parametrize(
    'grid, kernel_size, num_special',
    [((14, 14), 3, 0), ((5, 9), 5, 1), ((2, 2), 3, 2), ((1, 6), 1, 1), ((1, 1), 3, 0)],
)
def test_each_row_is_as_dense_as_the_neighborhoods(grid, kernel_size, num_special):
    mask = random_mask(grid, kernel_size, num_special, seed=3)
    near = neighborhood_mask(grid, kernel_size, num_special)
    assert mask.shape == near.shape and mask.dtype == torch.bool
    assert torch.equal(mask.sum(1), near.sum(1))
    assert mask[:num_special].all() and mask[:, :num_special].all()


def test_places_are_random():
    """Each is as likely: near or far, the patch itself or another."""
    shape = (14, 14)
    masks = torch.stack([random_mask(shape, seed=seed) for seed in range(200)]).double()
    rate = neighborhood_mask(shape).sum(1, dtype=torch.float64) / 196  # of each row
    spread = (rate * (1 - rate) / 200).sqrt()
    deviation = (masks.mean(0) - rate[:, None]) / spread[:, None]
    assert deviation.std().item() == pytest.approx(1, abs=0.03)
    assert deviation.abs().max() < 8  # of 38,416, rates are a few per cent
    for part in (neighborhood_mask(shape), torch.eye(196, dtype=torch.bool)):
        assert abs(deviation[part].mean()) < 4 / part.sum() ** 0.5
    seen = masks[:100].sum(1).flatten()  # how often patches are seen in a mask
    expected = (rate * (1 - rate)).sum().item()
    assert seen.var().item() == pytest.approx(expected, rel=0.1)


def test_a_mask_is_its_seeds():
    torch.manual_seed(1)
    mask = random_mask((5, 5), seed=7)
    torch.manual_seed(2)
    assert torch.equal(mask, random_mask((5, 5), seed=7))
    assert not torch.equal(mask, random_mask((5, 5), seed=8))
    # As it was when the first models were trained with it.
    first, second = (r.nonzero().flatten() for r in random_mask((3, 4), seed=0)[:2])
    assert first.tolist() == [0, 3, 5, 11] and second.tolist() == [1, 4, 6, 8, 9, 10]


@pytest.mark.parametrize('mask_fill', ['zero', 'neg_inf'])
def test_masked_heads_are_masked_and_others_are_not(mask_fill):
    torch.manual_seed(0)
    N, settings = 21, dict(num_special=1, mask_fill=mask_fill)
    layer = RandomMaskedAttention(24, 3, (0, 2), seed=5, **settings).double()
    nn.init.normal_(layer.qkv.weight, std=0.5)
    x = randn(2, N, 24)
    q, k, v = layer.qkv(x).view(2, N, 3, 3, 8).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT * 8**-0.5
    mask = random_mask((4, 5), 3, 1, seed=5)
    for head in (0, 2):
        fill = 0 if mask_fill == 'zero' else -torch.inf
        scores[:, head] = torch.where(mask, scores[:, head], fill)
    expected = layer.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, N, 24))
    assert_close('out', expected, layer(x, (4, 5)))
    local = MaskedAttention(24, 3, (0, 2), **settings).double()
    local.load_state_dict(layer.state_dict())
    assert (local(x, (4, 5)) - expected).abs().max() > 0.01


def test_mait_takes_it_and_checkpoints_keep_it():
    torch.manual_seed(0)

    def make(seed):
        settings = dict(img_size=64, out_type='cls_token', random_mask_seed=seed)
        return MaiT(ARCH, masking='sch1', **settings).eval()

    backbone = make(3)
    layers = [m for m in backbone.modules() if isinstance(m, RandomMaskedAttention)]
    assert len(layers) == 2
    for layer in layers:
        assert layer.masked_heads == (0,) and layer.seed == 3
        nn.init.normal_(layer.qkv.weight, std=0.3)
    image = torch.randn(2, 3, 64, 80)
    out = backbone(image)[0]
    state = backbone.state_dict()
    assert set(state) == set(make(None).state_dict())
    for seed, same in ((3, True), (4, False), (None, False)):
        resumed = make(seed)
        resumed.load_state_dict(state)
        assert torch.equal(resumed(image)[0], out) is same
    assert torch.equal(copy.deepcopy(backbone)(image)[0], out)


test_what_there_is_none_of_is_refused = refuses(
    partial(RandomMaskedAttention, 24, 3),
    (dict(soft=True), 'soft=True'),
    (dict(backend='triton'), "backend='triton'"),
    (dict(kernel_size=4), 'kernel_size must be odd, got 4'),
)
