"""PooledMLP: formula, shapes, gradients, registration without mmpretrain."""

import subprocess
import sys

import pytest
import torch

from mmattn.models import PooledMLP


def test_forward_is_the_formula():
    torch.manual_seed(0)
    head = PooledMLP(6)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    maps = torch.randn(2, 5, 14, 14), torch.randn(2, 6, 3, 5)

    def norm(x, layer):
        x = x - x.mean(1, keepdim=True)
        x = x / (x.square().mean(1, keepdim=True) + layer.eps).sqrt()
        return x * layer.weight + layer.bias

    x = norm(maps[1].flatten(2).mean(2), head.norm1)
    x = (x @ head.fc.weight.T + head.fc.bias).clamp(min=0) ** 2
    (out,) = head(maps)
    assert out.shape == (2, 24)
    torch.testing.assert_close(out, norm(x, head.norm2))


@pytest.mark.parametrize('size', [(1, 1), (7, 5)], ids=str)
def test_every_parameter_gets_a_gradient(size):
    torch.manual_seed(0)
    head = PooledMLP(8, mlp_ratio=2)
    feature = torch.randn(1, 8, *size, requires_grad=True)
    (out,) = head((feature,))
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in head.parameters())
    assert feature.grad.abs().sum() > 0


def test_builds_by_name_without_mmpretrain():
    pytest.importorskip('mmengine')
    program = (
        'import sys\n'
        'from mmengine.registry import MODELS\n'
        "head = MODELS.build(dict(type='mmattn.PooledMLP', in_channels=4))\n"
        "print(type(head).__name__, 'mmpretrain' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ['PooledMLP', 'False']
