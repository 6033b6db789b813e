"""Landmark attention: arguments, checks and the operator."""

import torch
from torch import Tensor

from mmattn.errors import UserError

from ..common.checks import (
    check_dims,
    check_not_empty,
    check_one_device,
    check_one_dtype,
    check_qkv,
    check_shape,
)
from ..common.operator import Operator
from ..common.precision import cast_under_autocast, compute_dtype, without_autocast
from . import cpp_impl, inspection, reference, torch_impl, triton_impl


def landmark_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_landmarks: Tensor,
    k_landmarks: Tensor,
    w1_q: Tensor | None = None,
    w2_q: Tensor | None = None,
    w1_k: Tensor | None = None,
    w2_k: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """Attend through landmarks with interaction between heads, linear in N.

    `out = A_Q (A_K v)` with `A_Q = w2_q softmax_L(w1_q q k_landmarks^T / sqrt(D))` and
    `A_K = w2_k softmax_N(w1_k q_landmarks k^T / sqrt(D))`; w1 and w2 mix the head axis.
    From "Interactive Multi-Head Self-Attention with Linear Complexity",
    https://arxiv.org/abs/2402.17507, equations 6 to 8. B batch, N tokens, L landmarks,
    M heads, D head width, E mixed heads (the paper's E is M).

    Args:
        q, k, v: shape (B, N, M, D), float32, float16, bfloat16 or float64, of one
            dtype. Arithmetic and softmax are in float32, or in float64 for float64.
        q_landmarks, k_landmarks: shape (B, L, M, D), dtype as q.
        w1_q, w1_k: shape (E, M), applied to scores. None is the identity.
        w2_q, w2_k: shape (M, E), applied to the softmax. None is the identity.
            w1 and w2 of one side must both be given or both be None.
        backend: 'triton', 'cpp', 'torch', 'reference', or None for the fastest one that
            supports the call. It is 'reference' in forward mode, under
            `torch.func.grad`, and without the extension on CPUs where small maps need
            gradients. Second derivatives are those of 'reference'.

    Returns:
        Shape (B, N, M, D), dtype as q. Under autocast the five attention tensors are
        cast to autocast's dtype first.

    Raises:
        ValueError: shapes, dtypes or devices disagree, or `backend` does not support
            the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 196, 10, 32).unbind()
        >>> q_landmarks, k_landmarks = torch.randn(2, 2, 49, 10, 32).unbind()
        >>> landmark_attention(q, k, v, q_landmarks, k_landmarks).shape
        torch.Size([2, 196, 10, 32])
    """
    attention = cast_under_autocast(q, k, v, q_landmarks, k_landmarks)
    mixing = (w1_q, w2_q, w1_k, w2_k)
    _check(attention, mixing)
    with without_autocast(q):
        return OPERATOR(*attention, *mixing, backend=backend)


def _check(attention, mixing):
    q, k, v, q_landmarks, k_landmarks = attention
    B, _, M, D = check_qkv(q, k, v)
    L = check_dims('q_landmarks', q_landmarks, 4)[1]
    check_not_empty(L=L)
    for side, landmarks in (('q', q_landmarks), ('k', k_landmarks)):
        check_shape(f'{side}_landmarks', landmarks, (B, L, M, D))
    check_one_dtype(q=q, k=k, v=v, q_landmarks=q_landmarks, k_landmarks=k_landmarks)
    check_one_device(*attention, *mixing)
    for side, w1, w2 in (('q', *mixing[:2]), ('k', *mixing[2:])):
        if (w1 is None) != (w2 is None):
            raise UserError(
                f'`w1_{side}` and `w2_{side}` must both be given or both None'
            )
        if w1 is not None:
            E = check_dims(f'w1_{side}', w1, 2)[0]
            check_shape(f'w1_{side}', w1, (E, M))
            check_shape(f'w2_{side}', w2, (M, E))


def _outputs(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k, *, backend):
    """Return an empty output, context `A_K v` and softmax statistics."""
    B, L, M, D = k_landmarks.shape
    context, statistics = (B, L, M, D), (0,)  # 'torch' computes statistics again
    if backend == 'cpp':
        context, statistics = (B, M, L, D), (B, M if w1_k is None else len(w1_k), L)
    elif backend == 'triton':
        statistics = (triton_impl.num_statistics(q, k_landmarks, w1_q, w1_k),)
    dtype = compute_dtype(q.dtype)
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty(context, dtype=dtype),
        q.new_empty(statistics, dtype=dtype),
    )


def _example(device: str, dtype: torch.dtype) -> tuple[tuple, dict]:
    """Return the tensors and the settings of a small call."""
    attention = (
        torch.randn(2, length, 3, 8, device=device).to(dtype)
        for length in (35, 35, 35, 9, 9)
    )
    mixing = (
        torch.randn(shape, device=device) for shape in ((4, 3), (3, 4), (4, 3), (3, 4))
    )
    return (*attention, *mixing), {}


OPERATOR = Operator(
    'landmark_attention',
    reference.landmark_attention_reference,
    {'triton': triton_impl, 'cpp': cpp_impl, 'torch': torch_impl},
    tensors='Tensor q, Tensor k, Tensor v, Tensor q_landmarks, Tensor k_landmarks, '
    'Tensor? w1_q, Tensor? w2_q, Tensor? w1_k, Tensor? w2_k',
    outputs=_outputs,
    example=_example,
    flops=inspection.FLOPS,
    attention=inspection.attention,
    saved=('context', 'statistics'),
)
