"""Focal losses through mmcv's own functions, against loops over rows and classes."""

import pytest
import torch
from mmcv import ops as mmcv_ops
from same_results import assert_same

pytestmark = pytest.mark.usefixtures('our_ops')

N, K = 7, 4
GAMMA, ALPHA = 2.0, 0.3


def logits(scale=2.0):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(N, K, generator=generator, dtype=torch.float64)
    return (values * scale).requires_grad_()


def targets(number):
    """Every class, and whichever number comes after the last one when `number` > K."""
    return torch.arange(N) % number


def class_weight(given):
    return torch.arange(1.0, K + 1, dtype=torch.float64) if given else None


def loop_sigmoid_focal_loss(logits, target, gamma, alpha, weight):
    rows = []
    for x, label in zip(logits, target.tolist(), strict=True):
        for k in range(K):
            p = 1 / (1 + torch.exp(-x[k]))
            if k == label:
                loss = -alpha * (1 - p) ** gamma * torch.log(p)
            else:
                loss = -(1 - alpha) * p**gamma * torch.log(1 - p)
            rows.append(loss if weight is None else loss * weight[label])
    return torch.stack(rows).view(N, K)


@pytest.mark.parametrize(
    ('weighted', 'gamma', 'reduction'),
    [
        (False, 2.0, 'sum'),
        (True, 0.5, 'mean'),
        (False, 0.0, 'mean'),
        (True, 2.0, 'none'),
    ],
)
def test_sigmoid_focal_loss(weighted, gamma, reduction):
    x, weight = logits(), class_weight(weighted)
    target = targets(K if weighted else K + 1)
    loss = mmcv_ops.sigmoid_focal_loss(x, target, gamma, ALPHA, weight, reduction)
    expected = loop_sigmoid_focal_loss(x, target, gamma, ALPHA, weight)
    if reduction != 'none':
        expected = expected.sum() / (N if reduction == 'mean' else 1)
    assert_same(loss, expected, x)


def test_sigmoid_focal_loss_of_certain_logits():
    """A wrong and certain answer costs its logit; a right one nothing; none is NaN."""
    x = torch.tensor([[60.0, -60.0, 60.0, -60.0]], requires_grad=True)
    target = torch.tensor([0])
    loss = mmcv_ops.sigmoid_focal_loss(x, target, GAMMA, ALPHA, None, 'none')
    torch.testing.assert_close(loss, torch.tensor([[0, 0, 0.7 * 60, 0]]))
    (grad,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(grad, torch.tensor([[0, 0, 0.7, 0]]))


def test_sigmoid_focal_loss_background_has_weight_one():
    x, background = logits(), torch.full((N,), K)
    weight = class_weight(True)
    arguments = GAMMA, ALPHA
    torch.testing.assert_close(
        mmcv_ops.sigmoid_focal_loss(x, background, *arguments, weight, 'none'),
        mmcv_ops.sigmoid_focal_loss(x, background, *arguments, None, 'none'),
    )
