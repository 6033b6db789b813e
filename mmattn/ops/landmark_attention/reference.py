"""Landmark attention with cross-head interaction, written as the paper defines it.

Kang, Yang and Ryu, "Interactive Multi-Head Self-Attention with Linear Complexity",
https://arxiv.org/abs/2402.17507, equations 6 to 8. No official code is known.
"""

from torch import Tensor

from ..common.precision import compute_dtype


def mix_heads(weights: Tensor, mixing: Tensor | None) -> Tensor:
    """Mix the heads of (B, M, R, S) by `mixing` (E, M); None is the identity."""
    if mixing is None:
        return weights
    return (mixing @ weights.flatten(2)).unflatten(2, (weights.shape[2], -1))


def mixed_attention_weights(
    q: Tensor, k: Tensor, w1: Tensor | None, w2: Tensor | None
) -> Tensor:
    """Return `w2 softmax(w1 q k^T / sqrt(D))`, the matrix A of equation 5.

    Args:
        q: shape (B, R, M, D).
        k: shape (B, S, M, D).
        w1: shape (E, M), mixes the heads of the scores; None is the identity.
        w2: shape (M, E), mixes the heads of the softmax; None is the identity.

    Returns:
        Shape (B, M, R, S).
    """
    q, k = (x.transpose(1, 2) for x in (q, k))  # (B, M, R or S, D)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, M, R, S)
    return mix_heads(mix_heads(scores, w1).softmax(dim=-1), w2)


def mixed_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, w1: Tensor | None, w2: Tensor | None
) -> Tensor:
    """Return the matrix of equation 5 times `v` (B, S, M, D), shape (B, R, M, D)."""
    return (mixed_attention_weights(q, k, w1, w2) @ v.transpose(1, 2)).transpose(1, 2)


def landmark_attention_reference(
    q, k, v, q_landmarks, k_landmarks, w1_q=None, w2_q=None, w1_k=None, w2_k=None
) -> Tensor:
    """Return `mmattn.ops.landmark_attention` of the same arguments."""
    storage, dtype = q.dtype, compute_dtype(q.dtype)
    tensors = (q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k)
    q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k = (
        None if x is None else x.to(dtype) for x in tensors
    )
    context = mixed_attention_reference(q_landmarks, k, v, w1_k, w2_k)  # A_K v
    out = mixed_attention_reference(q, k_landmarks, context, w1_q, w2_q)  # A_Q (...)
    return out.to(storage)


def landmark_attention_folded(
    q, k, v, q_landmarks, k_landmarks, w1_q=None, w2_q=None, w1_k=None, w2_k=None
) -> Tensor:
    """Compute landmark attention with both mixings folded into the small tensors.

    Every mixed head attends with all C = M * D channels, so that no step crosses heads.
    Tests use this independent formulation; the README of this folder derives it.
    """
    context = _folded_attention(q_landmarks, k, v, w1_k, w2_k)
    return _folded_attention(q, k_landmarks, context, w1_q, w2_q)


def _folded_attention(q, k, v, w1, w2):
    B, R, M, D = q.shape
    eye = q.new_ones(M).diag()
    w1 = eye if w1 is None else w1  # (E, M)
    w2 = eye if w2 is None else w2  # (M, E)
    out = q.new_zeros(B, R, M * D)
    for mix_in, mix_out in zip(w1, w2.T, strict=True):
        k_folded = (k * mix_in[:, None]).flatten(2)  # (B, S, C)
        v_folded = (v * mix_out[:, None]).flatten(2)  # (B, S, C)
        scores = q.flatten(2) @ k_folded.transpose(1, 2) * D**-0.5
        out = out + scores.softmax(dim=-1) @ v_folded
    return out.unflatten(2, (M, D))
