"""Compute the sigmoid focal loss, with the arguments of mmcv's operator.

Shapes: N rows, K classes.
"""

import torch
from torch.nn import functional as F

from . import widen


def _class_weight(weight, target):
    """Return the weight of each row's class, shape (N,); 1 if it has none.

    mmcv reads past the end of its weights for a target that is not a class.
    """
    if weight.numel() == 0:
        return torch.ones_like(target, dtype=torch.float32)
    is_class = (target >= 0) & (target < weight.numel())
    chosen = widen(weight)[target.clamp(0, weight.numel() - 1)]
    return torch.where(is_class, chosen, 1.0)


def sigmoid_focal_loss_forward(input, target, weight, output, gamma, alpha):
    """Write the focal loss of K binary classifiers per row, not reduced.

    The logarithms are computed from the logits, so they stay exact where the
    probability rounds to 0 or 1. mmcv computes them from the rounded probability.

    Args:
        input: logits, shape (N, K).
        target: class of each row, shape (N,). Any other number, such as K, means
            background.
        weight: weight of each class, shape (K,), or empty.
        output: shape (N, K), written.
        gamma: exponent of the modulating factor.
        alpha: weight of the positives; the negatives have 1 - alpha.
    """
    logits = widen(input)
    positive = target[:, None] == torch.arange(logits.size(1), device=target.device)
    signed = torch.where(positive, logits, -logits)
    balance = torch.where(positive, logits.new_tensor(alpha), 1 - alpha)
    loss = -balance * (-signed).sigmoid() ** gamma * F.logsigmoid(signed)
    output.copy_(loss * _class_weight(weight, target)[:, None])


def sigmoid_focal_loss_backward(input, target, weight, grad_input, gamma, alpha):
    """Write the loss's derivative by each logit; see `sigmoid_focal_loss_forward`.

    With s the logit, negated for a negative, and p = sigmoid(s), it is
    balance * (1 - p)^gamma * (gamma p log(p) - (1 - p)) ds/dx.
    """
    logits = widen(input)
    positive = target[:, None] == torch.arange(logits.size(1), device=target.device)
    signed = torch.where(positive, logits, -logits)
    balance = torch.where(positive, logits.new_tensor(alpha), alpha - 1)
    wrong = (-signed).sigmoid()
    slope = gamma * signed.sigmoid() * F.logsigmoid(signed) - wrong
    gradient = balance * wrong**gamma * slope
    grad_input.copy_(gradient * _class_weight(weight, target)[:, None])
