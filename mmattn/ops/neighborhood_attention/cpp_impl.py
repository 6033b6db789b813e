"""Neighborhood attention on CPUs in C++, through the compiled extension."""

from torch import Tensor

from ..common import local_attention
from ..common.local_attention import Window
from .reference import window_width


def unsupported(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return local_attention.unsupported(q, k, v)


def forward(q, k, v, rpb):
    """Return the output and its log-sum-exp (B, M, H * W)."""
    tokens = [x.flatten(1, 2) for x in (q, k, v)]
    out, lse = local_attention.attend(*tokens, rpb, _window(q, rpb))
    return out.view(q.shape), lse


def backward(grad, out, lse, q, k, v, rpb):
    """Return the gradients of q, k, v and rpb."""
    tokens = [x.flatten(1, 2) for x in (q, k, v)]
    *grads, drpb = local_attention.gradients(
        grad.flatten(1, 2), lse, *tokens, rpb, _window(q, rpb)
    )
    return *(x.view(q.shape) for x in grads), drpb


def _window(q: Tensor, rpb: Tensor) -> Window:
    return Window(tuple(q.shape[1:3]), window_width(rpb), 0, False, False)
