"""Compute rows of attention matrices for some queries, without the matrices.

Row i of a head's matrix holds the weights of all tokens' values in the output at i.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmattn.ops.landmark_attention import mixed_attention_weights
from mmattn.ops.neighborhood_attention import windows
from mmattn.ops.structure_aware_attention import l2_normalize


def circulant_rows(w: Tensor, cell: Sequence[int]) -> Tensor:
    """Return row `cell` of the matrices that convolve circularly with `w`.

    Entry j of the row is the tap at offset cell - j. `w` and the result have shape
    (..., *grid).
    """
    dims = tuple(range(-len(cell), 0))
    return w.flip(dims).roll([i + 1 for i in cell], dims)


def structure_aware_kernels(
    q: Tensor, k: Tensor, w_a: Tensor, w_b: Tensor, rows: Sequence[int]
) -> Tensor:
    """Return kernels of structure-aware attention: `sum_k p[k, i] R_k[i, :]`.

    Args:
        q, k: shape (N, M, D), as given to the operator.
        w_a, w_b: kernels (D, K, *grid) and (K, *grid), real.
        rows: the queries i, in row-major order of the grid.

    Returns:
        Shape (len(rows), M, N).
    """
    grid = w_b.shape[1:]
    q, k = l2_normalize(q), l2_normalize(k)
    kernels = []
    for i in rows:
        cell = [int(c) for c in torch.unravel_index(torch.tensor(i), grid)]
        r_a, r_b = (circulant_rows(w, cell).flatten(-len(grid)) for w in (w_a, w_b))
        patterns = torch.einsum('md,nmd,dkn->mk', q[i], k, r_a)
        kernels.append(patterns @ r_b)  # (M, N)
    return torch.stack(kernels)


def softmax_kernels(
    q: Tensor,
    k: Tensor,
    rows: Sequence[int],
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return rows of `softmax(q k^T scale + mask)`.

    Args:
        q, k: shape (M, N, D).
        mask: broadcasts to (M, N, N). A boolean mask keeps the scores where it is True.
        scale: defaults to D^-0.5.

    Returns:
        Shape (len(rows), M, N).
    """
    rows = list(rows)
    scores = q[:, rows] @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = mask.expand(len(q), q.shape[1], k.shape[1])[:, rows]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    return scores.softmax(-1).transpose(0, 1)


def patch_offsets(
    rows: Sequence[int],
    grid: Sequence[int],
    num_special: int = 0,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return key minus query, downward and to the right, shape (2, len(rows), N).

    Tokens on the grid are in row-major order. The values for special tokens, which come
    first, have no meaning.
    """
    place = torch.arange(num_special + grid[0] * grid[1], device=device) - num_special
    place = torch.stack([place // grid[1], place % grid[1]])
    return place[:, None] - place[:, list(rows), None]


def masked_kernels(
    q: Tensor,
    k: Tensor,
    rows: Sequence[int],
    grid: Sequence[int],
    kernel_size: int,
    num_special: int,
    bias: Tensor | None,
    alpha: Tensor | None,
    mask_fill: str,
) -> Tensor:
    """Return rows of the softmax of masked scores, given `masked_attention`'s inputs.

    Args:
        q, k: shape (N, M, D).
        bias: shape (M, R, R).
        alpha: shape (M,).

    Returns:
        Shape (len(rows), M, N).
    """
    rows = list(rows)
    dtype = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum('imd,jmd->imj', q[rows].to(dtype), k.to(dtype))
    scores = scores * q.shape[-1] ** -0.5
    offset = patch_offsets(rows, grid, num_special, device=q.device)
    is_special = torch.arange(len(q), device=q.device) < num_special
    is_special = is_special[rows, None] | is_special
    near = (offset.abs() <= kernel_size // 2).all(0) & ~is_special
    if bias is not None:
        y, x = offset[:, near] + kernel_size // 2
        spread = torch.zeros_like(scores).transpose(0, 1)
        spread[:, near] = bias[:, y, x].to(dtype)
        scores = scores + spread.transpose(0, 1)
    outside = ~(near | is_special)[:, None]
    if mask_fill == 'neg_inf':
        scores = scores.masked_fill(outside, -torch.inf)
    elif alpha is None:
        scores = scores.masked_fill(outside, 0)
    else:
        scores = torch.where(outside, alpha.to(dtype)[:, None] * scores, scores)
    return scores.softmax(-1)


def neighborhood_kernels(
    q: Tensor, k: Tensor, rpb: Tensor, rows: Sequence[int]
) -> Tensor:
    """Return kernels of neighborhood attention, which are zero outside the windows.

    Args:
        q, k: shape (H, W, M, D), as given to the operator.
        rpb: shape (M, 2 K - 1, 2 K - 1).
        rows: the queries, in row-major order of the map.

    Returns:
        Shape (len(rows), M, H * W).
    """
    H, W, M, D = q.shape
    K = (rpb.shape[1] + 1) // 2
    dtype = torch.promote_types(q.dtype, torch.float32)
    places = torch.as_tensor(list(rows), device=q.device)
    y_q, x_q = places // W, places % W
    y, x = (windows(s, K, q.device)[at] for s, at in ((H, y_q), (W, x_q)))
    seen = y[:, :, None], x[:, None]  # broadcast to (len(rows), K, K)
    scores = torch.einsum('rmd,rijmd->mrij', q[y_q, x_q].to(dtype), k[seen].to(dtype))
    dy, dx = y - y_q[:, None] + K - 1, x - x_q[:, None] + K - 1
    scores = scores * D**-0.5 + rpb[:, dy[:, :, None], dx[:, None]].to(dtype)
    tokens = (y[:, :, None] * W + x[:, None]).flatten(1)  # (len(rows), K * K)
    kernels = scores.new_zeros(M, len(places), H * W)
    kernels.scatter_(2, tokens.expand(M, -1, -1), scores.flatten(2).softmax(-1))
    return kernels.transpose(0, 1)


def landmark_kernels(
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
