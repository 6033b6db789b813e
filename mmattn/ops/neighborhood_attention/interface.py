"""Neighborhood attention: arguments, checks and the operator."""

import torch
from torch import Tensor

from mmattn.errors import UserError

from ..common.checks import (
    check_not_empty,
    check_one_device,
    check_one_dtype,
    check_shape,
)
from ..common.operator import Operator, out_and_statistics
from ..common.precision import cast_under_autocast, without_autocast
from . import cpp_impl, inspection, reference, torch_impl, triton_impl
from .decomposition import neighborhood_attention_decomposition


def neighborhood_attention(
    q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, *, backend: str | None = None
) -> Tensor:
    """Attend from each query to the K x K pixels nearest to it.

    `out = softmax(q k^T / sqrt(D) + rpb) v` over the keys of the query's window. At a
    border the window is shifted into the map instead of clipped, so every query sees
    K * K keys. From "Neighborhood Attention Transformer",
    https://arxiv.org/abs/2204.07143, equations 1 to 4. B batch, H and W the map, both
    at least K, M heads, D head width.

    Args:
        q, k, v: shape (B, H, W, M, D), float32, float16, bfloat16 or float64, of one
            dtype. Softmax is in float32 (float64 in float64).
        rpb: relative position bias, shape (M, 2 K - 1, 2 K - 1) with an odd K of at
            least 3. The score of the query at (y_q, x_q) and the key at (y_k, x_k) gets
            `rpb[:, K - 1 + y_k - y_q, K - 1 + x_k - x_q]`.
        backend: 'triton', 'cpp', 'torch', 'reference', or None for the fastest one that
            supports the call. It is 'reference' in forward mode and under
            `torch.func.grad`. Second derivatives are those of 'reference'.

    Returns:
        Shape (B, H, W, M, D), dtype as q. Under autocast q, k and v are cast to
        autocast's dtype first.

    Raises:
        ValueError: shapes, dtypes or devices disagree, the map is smaller than the
            window, or `backend` cannot run this.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 14, 14, 4, 32).unbind()
        >>> rpb = torch.randn(4, 13, 13)  # K = 7
        >>> neighborhood_attention(q, k, v, rpb).shape
        torch.Size([2, 14, 14, 4, 32])
    """
    q, k, v = cast_under_autocast(q, k, v)
    _check(q, k, v, rpb)
    with without_autocast(q):
        return OPERATOR(q, k, v, rpb, backend=backend)


def _check(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor):
    if q.dim() != 5 or k.shape != q.shape or v.shape != q.shape:
        raise UserError(
            '`q`, `k` and `v` must have one shape (B, H, W, M, D), got '
            f'{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}'
        )
    _, H, W, M, D = q.shape
    check_not_empty(M=M, D=D)
    check_one_dtype(q=q, k=k, v=v)
    check_one_device(q, k, v, rpb)
    side = rpb.shape[-1] if rpb.dim() == 3 else 0
    if side < 5 or side % 4 != 1:
        raise UserError(
            '`rpb` must have shape (M, 2 K - 1, 2 K - 1) with an odd K of at least 3, '
            f'got {tuple(rpb.shape)}'
        )
    check_shape('rpb', rpb, (M, side, side))
    K = (side + 1) // 2
    if min(H, W) < K:
        raise UserError(f'a {H}x{W} map is smaller than the {K}x{K} window: pad it')


def _outputs(q: Tensor, *tensors: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """Return empty tensors for the output and the statistics."""
    out, lse = out_and_statistics(q.flatten(1, 2), backend=backend)
    return out.view(q.shape), lse


def _example(device: str, dtype: torch.dtype) -> tuple[tuple, dict]:
    """Return the tensors and the settings of a small call."""
    qkv = (torch.randn(2, 9, 8, 3, 8, device=device).to(dtype) for _ in range(3))
    return (*qkv, torch.randn(3, 9, 9, device=device)), {}


OPERATOR = Operator(
    'neighborhood_attention',
    reference.neighborhood_attention_reference,
    {'triton': triton_impl, 'cpp': cpp_impl, 'torch': torch_impl},
    tensors='Tensor q, Tensor k, Tensor v, Tensor rpb',
    outputs=_outputs,
    example=_example,
    flops=inspection.FLOPS,
    attention=inspection.attention,
    saved=('out', 'lse'),
    decomposition=neighborhood_attention_decomposition,
)
