"""Landmark attention on CPUs in C++, through the compiled extension.

One kernel computes a side of the operator, a tile of tokens at a time. The softmax over
tokens takes a pass more for its log-sum-exps, and its backward one more for delta. Sums
over tokens are added by parts, in order, so that threads do not change results.
"""

import torch
from torch import Tensor

from ..common import extension
from ..common.checks import device_reason, dtype_reason

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PART_SIZE = 192  # tokens: a multiple of the tiles of every instruction set


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    reason = device_reason(q, 'cpu', 'meta') or extension.UNAVAILABLE
    return reason or dtype_reason(DTYPES, q)


def forward(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Return the output, the context (B, M, L, D) and log-sum-exps (B, E, L)."""
    queries, keys = _side(q, k_landmarks, w1_q, w2_q), _side(k, q_landmarks, w1_k, w2_k)
    (lse,) = _attend(keys, 'new_lse')
    (context,) = _attend(keys, 'sum_w', w=_readable(v), lse=lse)
    (out,) = _attend(queries, 'out', z=context)
    return out, context, lse


def backward(
    grad, context, lse, q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Return the gradients of the nine tensors, None for mixing weights of None."""
    queries, keys = _side(q, k_landmarks, w1_q, w2_q), _side(k, q_landmarks, w1_k, w2_k)
    gradients = 'dx', 'dy', 'dw1', 'dw2'
    dcontext, dq, dk_landmarks, *dmixing_q = _attend(
        queries, 'sum_w', *gradients, w=_readable(grad), z=context
    )
    of_keys = dict(w=_readable(v), z=dcontext, lse=lse)
    (delta,) = _attend(keys, 'new_delta', **of_keys)
    dv, dk, dq_landmarks, *dmixing_k = _attend(
        keys, 'out', *gradients, delta=delta, **of_keys
    )
    dlandmarks = (
        (x.transpose(1, 2) * q.shape[3] ** -0.5).to(q.dtype).contiguous()
        for x in (dq_landmarks, dk_landmarks)
    )
    dmixing = (
        None if w is None else dw.sum(0).to(w.dtype)
        for w, dw in zip(
            (w1_q, w2_q, w1_k, w2_k), (*dmixing_q, *dmixing_k), strict=True
        )
    )
    return dq, dk, dv, *dlandmarks, *dmixing


def _side(x: Tensor, landmarks: Tensor, w1: Tensor | None, w2: Tensor | None):
    """Return tokens, landmarks (B, M, L, D) that are scaled, and weights.

    Landmarks and weights are in float32, and their transposes follow them. Weights of
    None are the identity.
    """
    y = landmarks.transpose(1, 2).float() * x.shape[3] ** -0.5
    w1, w2 = (torch.eye(x.shape[2]) if w is None else w for w in (w1, w2))
    pairs = ((t.float().contiguous(), t.mT.float().contiguous()) for t in (y, w1, w2))
    return _readable(x), *(t for pair in pairs for t in pair)


def _readable(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _attend(side: tuple[Tensor, ...], *names: str, z: Tensor | None = None, **tensors):
    """Return results of the kernel by their names, sums over the parts of the tokens."""
    x, y, _, w1, *_ = side
    (B, N, M, D), L, E = x.shape, y.shape[2], len(w1)
    shapes = {
        **dict.fromkeys(('new_lse', 'new_delta'), (E, L)),
        **dict.fromkeys(('sum_w', 'dy'), (M, L, D)),
        **dict(dw1=(E, M), dw2=(M, E)),
    }
    parts = -(-N // PART_SIZE)
    results = {
        name: torch.empty(B, parts, *shapes[name])
        if name in shapes
        else torch.empty(x.shape, dtype=x.dtype)
        for name in names
    }
    columns = None if z is None else z.mT.contiguous()
    torch.ops.mmattn_extension.landmark_attention(
        *side, PART_SIZE, z=z, z_columns=columns, **tensors, **results
    )
    for name in shapes.keys() & results:
        total = torch.logsumexp if name == 'new_lse' else torch.sum
        results[name] = total(results[name], 1)
    return results.values()
