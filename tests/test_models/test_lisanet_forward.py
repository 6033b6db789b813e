"""LiSANet: maps and gradients of whole networks against a plain rewrite."""

import pytest
import torch
from lisanet_rewrite import LiSANetRewrite
from torch import nn
from torch.testing import assert_close

from mmattn.models import LiSANet

EXACT = dict(rtol=1e-11, atol=1e-12)
HYBRID = dict(
    embed_dims=(16, 32, 48, 32),
    depths=(1, 2, 2, 1),
    mlp_ratios=(2, 3, 2, 3),
    conv_stages=2,
    patterns=3,
)
PYRAMID = dict(HYBRID, conv_stages=0)
PLAIN = dict(embed_dims=(32,), depths=(3,), mlp_ratios=(2,), conv_stages=0, patterns=3)
BIASES = dict(qkv_bias=False, proj_bias=True)
CASES = {  # the last is whether norms end the maps
    'hybrid': (HYBRID, (40, 56), {}, True),
    'hybrid-star-relu': (HYBRID, (32, 32), dict(activation='star_relu'), False),
    'pyramid-other-biases': (PYRAMID, (32, 16), BIASES, True),
    'plain': (PLAIN, (64, 80), {}, False),
    'plain-star-relu': (PLAIN, (48, 64), dict(activation='star_relu', **BIASES), True),
}


def build(arch, size, **kwargs):
    """Build in float64, with random parameters, of mean 1 where they scale."""
    torch.manual_seed(0)
    model = LiSANet(arch, img_size=size, **kwargs).double().train()
    for name, param in model.named_parameters():
        scales = 'norm' in name and name.endswith('weight') or name.endswith('scale')
        nn.init.normal_(param, mean=float(scales), std=0.2)
    return model


def image(*size):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)


def rewritten(model, arch, x):
    """Return the maps of the rewrite, and the leaves it computed them from."""
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    for weight in weights.values():
        weight.requires_grad_()
    network = LiSANetRewrite(weights, arch['depths'], arch['conv_stages'])
    maps = network(x)
    if model.out_norms:
        outs = zip(model.out_indices, maps, strict=True)
        maps = [network.norm(f'out_norms.{i}', out) for i, out in outs]
    return maps, weights


@pytest.mark.parametrize('arch, size, kwargs, out_norm', CASES.values(), ids=CASES)
def test_maps_and_gradients_are_the_rewrites(arch, size, kwargs, out_norm):
    model, x = build(arch, size, out_norm=out_norm, **kwargs), image(*size)
    expected, weights = rewritten(model, arch, x)
    outs = model(x)
    assert_close(list(outs), expected, **EXACT)
    for maps in (outs, expected):
        sum((y * y.detach().cos()).sum() for y in maps).backward()
    for name, param in model.named_parameters():
        grad = weights[name].grad
        # Rounding grows with the largest of the sums that a gradient consists of.
        error = (param.grad - grad).abs().max() / grad.abs().max()
        assert error < 1e-11, name
