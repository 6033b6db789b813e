"""Contract, checks, autograd and dispatch of landmark attention."""

import torch
from torch import Tensor

from ..backend import check_cotangent, is_autocast_on, select_backend
from . import cpu_impl, reference, triton_impl

OPERATOR = 'landmark_attention'
BACKENDS = {'triton': triton_impl, 'cpu': cpu_impl, 'reference': reference}


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
    """Attention through landmarks with interaction between heads, linear in N.

    `out = A_Q (A_K v)` with `A_Q = w2_q softmax_L(w1_q q k_landmarks^T / sqrt(D))` and
    `A_K = w2_k softmax_N(w1_k q_landmarks k^T / sqrt(D))`; w1 and w2 mix the head axis.
    From "Interactive Multi-Head Self-Attention with Linear Complexity",
    https://arxiv.org/abs/2402.17507, equations 6 to 8. B batch, N tokens, L landmarks,
    M heads, D head width, E mixed heads (the paper's E is M).

    Args:
        q, k, v: shape (B, N, M, D), float32, float16, bfloat16 or float64, of one
            dtype. Arithmetic and softmax are in float32 (float64 in float64).
        q_landmarks, k_landmarks: shape (B, L, M, D), dtype as q.
        w1_q, w1_k: shape (E, M), applied to scores. None is the identity.
        w2_q, w2_k: shape (M, E), applied to the softmax. None is the identity.
            w1 and w2 of one side are both given or both None.
        backend: 'triton', 'cpu', 'reference', or None to take the fastest one that can
            run the call. 'reference' alone can be differentiated twice. It runs by
            itself in forward mode and under `torch.func.grad`.

    Returns:
        Shape (B, N, M, D), dtype as q. Under autocast the five attention tensors are
        cast to autocast's dtype first.

    Raises:
        ValueError: shapes, dtypes or devices disagree, or `backend` cannot run this.

    Example:
        >>> q, k, v = torch.randn(3, 2, 196, 10, 32).unbind()
        >>> q_landmarks, k_landmarks = torch.randn(2, 2, 49, 10, 32).unbind()
        >>> landmark_attention(q, k, v, q_landmarks, k_landmarks).shape
        torch.Size([2, 196, 10, 32])
    """
    attention = (q, k, v, q_landmarks, k_landmarks)
    mixing = (w1_q, w2_q, w1_k, w2_k)
    device_type = q.device.type
    if is_autocast_on(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        attention = tuple(x.to(dtype) for x in attention)
        with torch.autocast(device_type, enabled=False):
            return landmark_attention(*attention, *mixing, backend=backend)
    _check(attention, mixing)
    backend = select_backend(OPERATOR, backend, BACKENDS, *attention, *mixing)
    if backend == 'reference':
        return reference.landmark_attention_reference(*attention, *mixing)
    return torch.ops.mmattn.landmark_attention(*attention, *mixing, backend)[0]


def _check(attention, mixing):
    q, k, v, q_landmarks, k_landmarks = attention
    if q.dim() != 4 or k.shape != q.shape or v.shape != q.shape:
        raise ValueError(
            'q, k and v must have one shape (B, N, M, D), got '
            f'{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}'
        )
    B, N, M, D = q.shape
    L = q_landmarks.shape[1] if q_landmarks.dim() == 4 else 0
    if q_landmarks.shape != (B, L, M, D) or k_landmarks.shape != (B, L, M, D):
        raise ValueError(
            f'landmarks must have one shape ({B}, L, {M}, {D}), got '
            f'{tuple(q_landmarks.shape)} and {tuple(k_landmarks.shape)}'
        )
    if N == 0 or L == 0 or D == 0 or M == 0:
        raise ValueError(
            f'needs tokens, landmarks and heads, got N={N}, {L=}, {M=}, {D=}'
        )
    if len({x.dtype for x in attention}) > 1 or not q.is_floating_point():
        raise ValueError(
            'q, k, v and landmarks must have one floating-point dtype, got '
            f'{[str(x.dtype) for x in attention]}'
        )
    devices = {str(x.device) for x in (*attention, *mixing) if x is not None}
    if len(devices) > 1:
        raise ValueError(f'all tensors must be on one device, got {sorted(devices)}')
    for side, w1, w2 in (('q', *mixing[:2]), ('k', *mixing[2:])):
        if (w1 is None) != (w2 is None):
            raise ValueError(f'w1_{side} and w2_{side} must both be given or both None')
        if w1 is None:
            continue
        if w1.dim() != 2 or w1.shape[1] != M or w2.shape != (M, w1.shape[0]):
            raise ValueError(
                f'w1_{side} and w2_{side} must have shapes (E, {M}) and ({M}, E), got '
                f'{tuple(w1.shape)} and {tuple(w2.shape)}'
            )


ATTENTION = 'Tensor q, Tensor k, Tensor v, Tensor q_landmarks, Tensor k_landmarks'
MIXING = 'Tensor? w1_q, Tensor? w2_q, Tensor? w1_k, Tensor? w2_k'


@torch.library.custom_op(
    'mmattn::landmark_attention',
    mutates_args=(),
    schema=f'({ATTENTION}, {MIXING}, str backend) -> (Tensor, Tensor, Tensor)',
)
def _forward(*args):
    """Output, context `A_K v` and softmax statistics, the last two for the backward."""
    *tensors, backend = args
    return BACKENDS[backend].forward(*tensors)


@_forward.register_fake
def _(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k, backend):
    compute_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    num_statistics = BACKENDS[backend].num_statistics(q, k_landmarks, w1_q, w1_k)
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty(k_landmarks.shape, dtype=compute_dtype),
        q.new_empty(num_statistics, dtype=compute_dtype),
    )


@torch.library.custom_op(
    'mmattn::landmark_attention_backward',
    mutates_args=(),
    schema=f'(Tensor grad, Tensor context, Tensor statistics, {ATTENTION}, {MIXING}, '
    'str backend) -> Tensor[]',
)
def _backward(*args):
    """Gradients of the attention tensors and of those mixing weights that exist."""
    *tensors, backend = args
    with torch.autocast(tensors[0].device.type, enabled=False):
        grads = BACKENDS[backend].backward(*tensors)
    return [grad for grad in grads if grad is not None]


@_backward.register_fake
def _(grad, context, statistics, *args):
    *tensors, _ = args
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in tensors
        if x is not None
    ]


def _setup_context(ctx, inputs, output):
    *tensors, ctx.backend = inputs
    _, context, statistics = output
    ctx.save_for_backward(context, statistics, *tensors)


def _autograd(ctx, grad, grad_context, grad_statistics):
    check_cotangent(OPERATOR, grad)
    saved = ctx.saved_tensors
    grads = iter(
        torch.ops.mmattn.landmark_attention_backward(grad, *saved, ctx.backend)
    )
    return *(None if x is None else next(grads) for x in saved[2:]), None


_forward.register_autograd(_autograd, setup_context=_setup_context)
