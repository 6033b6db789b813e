"""PooledMLP: formula, shapes, gradients, registration without mmpretrain."""

import pytest
import torch
from layer_checks import randn, randomize

from mmattn.models import PooledMLP


def test_forward_is_the_formula():
    """With CAFormer's epsilons, 1e-6 before the linear layer and 1e-5 after it."""
    torch.manual_seed(0)
    head = randomize(PooledMLP(6)).double()
    maps = [randn(2, 5, 14, 14), randn(2, 6, 3, 5)]

    def norm(x, layer, eps):
        x = x - x.mean(1, keepdim=True)
        x = x / (x.square().mean(1, keepdim=True) + eps).sqrt()
        return x * layer.weight + layer.bias

    x = norm(maps[1].flatten(2).mean(2), head.norm1, 1e-6)
    x = (x @ head.fc.weight.T + head.fc.bias).clamp(min=0) ** 2
    (out,) = head(maps)
    assert out.shape == (2, 24)
    expected = norm(x, head.norm2, 1e-5)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_dropout_follows_the_last_norm():
    """Training scales the outputs that it keeps; no norm sees those that it drops."""
    torch.manual_seed(0)
    head = PooledMLP(48, head_dropout=0.4)
    maps = (torch.randn(8, 48, 3, 5),)
    (full,) = head.eval()(maps)
    (out,) = head.train()(maps)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(0.6, abs=0.05)
    torch.testing.assert_close(out[kept], full[kept] / 0.6)
    assert list(head.state_dict()) == list(PooledMLP(48).state_dict())


@pytest.mark.parametrize('probability', [-0.1, 1, float('nan')])
def test_dropout_is_a_probability_below_1(probability):
    with pytest.raises(ValueError, match=rf'\[0, 1\), got {probability}'):
        PooledMLP(6, head_dropout=probability)
