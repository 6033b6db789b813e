"""Landmark attention for CPUs: batched matrix products over cache-sized row chunks.

Both halves of the operator are one function, mixed attention: rows attend to columns,
and heads are mixed before and after the softmax. A chunk holds whole rows, of several
images if they are small. Its softmax is complete and its maps stay in cache. The
backward recomputes the maps, which is faster than reading them from memory.
"""

import torch
from torch import Tensor

from ..checks import device_reason
from ..precision import compute_dtype

CHUNK_ELEMENTS = 1 << 18  # of one (E, rows, S) map: 1 MiB in float32
MIN_ROWS = 16  # products of fewer rows are slower than a miss of the cache


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def num_statistics(q: Tensor, k_landmarks: Tensor, w1_q, w1_k) -> int:
    """Return 0: the backward recomputes the softmax statistics."""
    return 0


def forward(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Return the output, the context `A_K v` in the compute dtype, no statistics."""
    dtype = compute_dtype(q.dtype)
    w1_q, w2_q, w1_k, w2_k = (_to(w, dtype) for w in (w1_q, w2_q, w1_k, w2_k))
    context = torch.empty(q_landmarks.shape, dtype=dtype)
    _mixed_forward(q_landmarks, k, v, w1_k, w2_k, out=context)
    out = torch.empty(q.shape, dtype=q.dtype)
    _mixed_forward(q, k_landmarks, context, w1_q, w2_q, out=out)
    return out, context, q.new_empty(0, dtype=dtype)


def backward(
    grad, context, statistics, q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Return the gradients of the nine tensors, None for mixing weights of None."""
    dtype = compute_dtype(q.dtype)
    mixing = (w1_q, w2_q, w1_k, w2_k)
    w1_q, w2_q, w1_k, w2_k = (_to(w, dtype) for w in mixing)
    dq, dk_landmarks, dcontext, dw1_q, dw2_q = _mixed_backward(
        grad, q, k_landmarks, context, w1_q, w2_q
    )
    dq_landmarks, dk, dv, dw1_k, dw2_k = _mixed_backward(
        dcontext, q_landmarks, k, v, w1_k, w2_k
    )
    dmixing = (dw1_q, dw2_q, dw1_k, dw2_k)
    dmixing = (
        None if w is None else _to(dw, w.dtype)
        for w, dw in zip(mixing, dmixing, strict=True)
    )
    return dq, dk, dv, dq_landmarks, dk_landmarks, *dmixing


def _to(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _slices(count: int, num_elements: int, minimum: int = 1) -> list[slice]:
    """Slice `count` items of `num_elements` each, so that a slice fills a chunk."""
    step = max(minimum, CHUNK_ELEMENTS // max(1, num_elements))
    return [slice(i, i + step) for i in range(0, count, step)]


def _heads_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Reshape (b, r, M, D) to (b * M, r, D) in the dtype of the arithmetic."""
    return x.to(dtype).transpose(1, 2).flatten(0, 1)


def _tokens_first(x: Tensor, num_images: int) -> Tensor:
    """Reshape (b * M, r, D) to (b, r, M, D)."""
    return x.unflatten(0, (num_images, -1)).transpose(1, 2)


def _per_image(maps: Tensor, num_images: int) -> Tensor:
    """Reshape (b * M, r, S) to (b, M, r * S)."""
    return maps.view(num_images, -1, maps.shape[1] * maps.shape[2])


def _mix(w: Tensor | None, maps: Tensor, num_images: int) -> Tensor:
    """Multiply (E, M) by (b * M, r, S) over the head axis."""
    if w is None:
        return maps
    mixed = w.expand(num_images, -1, -1).bmm(_per_image(maps, num_images))
    return mixed.view(-1, *maps.shape[1:])


def _mixed_forward(q, k, v, w1, w2, *, out):
    """Write (w2 softmax(w1 q k^T / sqrt(D))) v to `out`."""
    B, R, M, D = q.shape
    dtype = compute_dtype(q.dtype)
    row_elements = k.shape[1] * (M if w1 is None else len(w1))
    for images in _slices(B, R * row_elements):
        b = len(q[images])
        k_b, v_b = (_heads_first(x[images], dtype) for x in (k, v))  # (b * M, S, D)
        for rows in _slices(R, b * row_elements, MIN_ROWS):
            q_r = _heads_first(q[images, rows], dtype) * D**-0.5  # (b * M, r, D)
            scores = q_r.bmm(k_b.transpose(1, 2))  # (b * M, r, S)
            attn = _mix(w2, _mix(w1, scores, b).softmax(dim=-1), b)
            out[images, rows] = _tokens_first(attn.bmm(v_b), b)


def _mixed_backward(grad, q, k, v, w1, w2):
    """Return the gradients of q, k, v, w1 and w2, given that of the output."""
    B, R, M, D = q.shape
    dtype = compute_dtype(q.dtype)
    row_elements = k.shape[1] * (M if w1 is None else len(w1))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dw1, dw2 = (None if w is None else torch.zeros_like(w) for w in (w1, w2))
    for images in _slices(B, R * row_elements):
        b = len(q[images])
        k_b, v_b = (_heads_first(x[images], dtype) for x in (k, v))  # (b * M, S, D)
        dk_b, dv_b = (torch.zeros(x.shape, dtype=dtype) for x in (k_b, v_b))
        for rows in _slices(R, b * row_elements, MIN_ROWS):
            q_r = _heads_first(q[images, rows], dtype) * D**-0.5  # (b * M, r, D)
            grad_r = _heads_first(grad[images, rows], dtype)
            scores = q_r.bmm(k_b.transpose(1, 2))  # (b * M, r, S)
            prob = _mix(w1, scores, b).softmax(dim=-1)  # (b * E, r, S)
            dattn = grad_r.bmm(v_b.transpose(1, 2))
            dv_b.baddbmm_(_mix(w2, prob, b).transpose(1, 2), grad_r)
            dprob = dattn
            if w2 is not None:
                dw2 += _per_image(dattn, b).bmm(_per_image(prob, b).mT).sum(0)
                dprob = _mix(w2.T, dattn, b)
            dscores = torch._softmax_backward_data(dprob, prob, -1, dtype)
            if w1 is not None:
                dw1 += _per_image(dscores, b).bmm(_per_image(scores, b).mT).sum(0)
                dscores = _mix(w1.T, dscores, b)
            dq[images, rows] = _tokens_first(dscores.bmm(k_b), b) * D**-0.5
            dk_b.baddbmm_(dscores.transpose(1, 2), q_r)
        dk[images] = _tokens_first(dk_b, b)
        dv[images] = _tokens_first(dv_b, b)
    return dq, dk, dv, dw1, dw2
