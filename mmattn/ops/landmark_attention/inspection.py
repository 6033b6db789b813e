"""FLOPs of landmark attention, and rows of its effective matrix."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..common.inspection import Attention, Flops
from .reference import mixed_attention_weights


def forward_flops(
    q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k, *args, **kwargs
) -> int:
    """Count two maps of N x L for M heads: scores, product with v, two mixings each."""
    B, N, M, D = q
    L = q_landmarks[1]
    mixing = sum(prod(w) for w in (w1_q, w2_q, w1_k, w2_k) if w is not None)
    return 2 * B * N * L * (4 * M * D + mixing)


FLOPS = Flops(forward_flops)


def effective_rows(
    q: Tensor,
    k: Tensor,
    q_landmarks: Tensor,
    k_landmarks: Tensor,
    w1_q: Tensor | None,
    w2_q: Tensor | None,
    w1_k: Tensor | None,
    w2_k: Tensor | None,
    rows: Sequence[int],
) -> Tensor:
    """Return rows of `A_Q A_K`, the effective matrix of landmark attention.

    Args:
        q, k: shape (1, N, M, D).
        q_landmarks, k_landmarks: shape (1, L, M, D).
        w1_q, w1_k, w2_q, w2_k: mixtures of heads, as given to the operator.

    Returns:
        Shape (len(rows), M, N).
    """
    tensors = q, k, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k = (
        None if x is None else x.to(dtype) for x in tensors
    )
    a_q = mixed_attention_weights(q[:, list(rows)], k_landmarks, w1_q, w2_q)
    a_k = mixed_attention_weights(q_landmarks, k, w1_k, w2_k)  # (1, M, L, N)
    return (a_q @ a_k)[0].transpose(0, 1)


def attention(q, k, v, q_landmarks, k_landmarks, *mixing) -> Attention:
    """Return the attention of a call."""
    return Attention(
        q.shape[:3],
        lambda rows: effective_rows(q, k, q_landmarks, k_landmarks, *mixing, rows=rows),
        is_softmax=False,
    )
