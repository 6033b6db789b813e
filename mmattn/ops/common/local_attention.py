"""Attention of tokens to those around them, through the compiled extension.

Masked and neighborhood attention share its kernels; `csrc/README.md` describes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import extension
from .checks import device_reason, dtype_reason

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Most rows of a map that are a task, unless eight windows are more. They do not depend
# on the number of threads, so that sums over tasks do not, either.
BAND_ROWS = 32


class Window(NamedTuple):
    """Describe which keys a query of a map sees.

    Attributes:
        grid: rows and columns of the map.
        size: rows and columns of the window.
        num_special: tokens before the map's, which see all and which all see.
        fill: whether tokens outside the window have the score 0, not -inf.
        clipped: whether the border clips windows, or else shifts them into the map.
    """

    grid: tuple[int, int]
    size: int
    num_special: int
    fill: bool
    clipped: bool

    @property
    def bands(self) -> int:
        """Number of tasks that a head's map is divided into."""
        return max(1, -(-self.grid[0] // max(BAND_ROWS, 8 * self.size)))

    def arguments(self) -> list:
        """Return the window as the operators take it."""
        return [[*self.grid], *self[1:], self.bands]


def unsupported(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Return why the kernels do not support a call, or None."""
    reason = device_reason(q, 'cpu', 'meta') or extension.UNAVAILABLE
    return reason or dtype_reason(DTYPES, q, k, v)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, window: Window
) -> tuple[Tensor, Tensor]:
    """Return the output (B, N, M, D) and the log-sum-exp (B, M, N), in float32."""
    B, N, M, D = q.shape
    out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(B, M, N)
    _forward(q, k, v, bias, None, window, out, lse, None)
    return out, lse


def attend_softly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    window: Window,
    out: Tensor,
    dense_lse: Tensor,
) -> Tensor:
    """Correct attention with scores times alpha at the keys of the window.

    Args:
        q, k, v: shape (B, N, M, D).
        alpha: shape (M,).
        window: what the keys are.
        out: attention with the scores times alpha, (B, N, M, D) in float32 with the
            channels side by side. It becomes the output.
        dense_lse: its log-sum-exp (B, M, N).

    Returns:
        The log-sum-exp (B, M, N).
    """
    lse = torch.empty(dense_lse.shape)
    _forward(q, k, v, None, alpha, window, out, lse, dense_lse.contiguous())
    return lse


def _forward(q, k, v, bias, alpha, window, out, lse, dense_lse):
    total = torch.empty(q.shape[0], *q.shape[2:])
    torch.ops.mmattn_extension.local_attn_forward(
        q, k, v, _floats(bias), _floats(alpha), *window.arguments(), out, lse, total,
        dense_lse,
    )  # fmt: skip


def gradients(
    grad: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    window: Window,
) -> list[Tensor | None]:
    """Return the gradients of q, k, v and the bias, in the dtypes of these."""
    rounded = window.num_special == 0  # nothing is added to what is written
    dtype = q.dtype if rounded else torch.float32
    *dqkv, dbias, _ = _backward(grad, lse, q, k, v, bias, None, window, dtype)
    grads = [x.to(q.dtype) for x in dqkv]
    return [*grads, None if bias is None else dbias.to(bias.dtype)]


def soft_gradients(
    grad: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    window: Window,
    delta: Tensor,
    dense_lse: Tensor,
) -> list[Tensor]:
    """Return the share of `attend_softly` in the gradients of q, k, v and alpha.

    Args:
        grad, q, k, v: shape (B, N, M, D).
        lse: shape (B, M, N).
        alpha: shape (M,).
        window: as given to `attend_softly`.
        delta: products of `grad` and the output, (B, M, N).
        dense_lse: shape (B, M, N). It becomes the log-sum-exp that the gradient of the
            attention with scores times alpha takes. Rows that it is to leave out have
            infinity.

    Returns:
        The gradients in float32.
    """
    dtype, extras = torch.float32, (delta.contiguous(), dense_lse)
    *dqkv, _, dalpha = _backward(grad, lse, q, k, v, None, alpha, window, dtype, extras)
    return [*dqkv, dalpha]


def _backward(
    grad,
    lse,
    q,
    k,
    v,
    bias,
    alpha,
    window: Window,
    dtype,
    extras: Sequence = (None,) * 2,
):
    B, N, M, D = q.shape
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype) for x in (q, k, v))
    dbias = dalpha = None
    if bias is not None:
        dbias = torch.zeros(B, window.bands, *bias.shape)
    if alpha is not None:
        dalpha = torch.empty(B, M, window.bands + 1)
    total, dtotal = (torch.empty(B, M, D) for _ in range(2))
    special = torch.empty(B, M, window.bands, window.num_special, 2, D)
    torch.ops.mmattn_extension.local_attn_backward(
        grad, lse, q, k, v, _floats(bias), _floats(alpha), *window.arguments(),
        dq, dk, dv, dbias, dalpha, total, dtotal, special, *extras,
    )  # fmt: skip
    dbias = None if dbias is None else dbias.sum((0, 1))
    return dq, dk, dv, dbias, None if dalpha is None else dalpha.sum((0, 2))


def _floats(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()
