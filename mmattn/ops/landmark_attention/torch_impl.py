"""Landmark attention for CPUs: batched matrix products over cache-sized row chunks.

Both halves of the operator are one function, mixed attention: rows attend to columns,
and heads are mixed before and after the softmax. A chunk holds whole rows, of several
images if they are small. Its softmax is complete and its maps stay in cache. The
backward recomputes the maps, which is faster than reading them from memory.
"""

import torch
from torch import Tensor

from ..common.checks import device_reason
from ..common.chunks import slices
from ..common.precision import compute_dtype
from ..common.workspace import heads_first, product, scratch

CHUNK_ELEMENTS = 1 << 18  # of one (E, rows, S) map: 1 MiB in float32
MIN_ROWS = 16  # products of fewer rows are slower than a miss of the cache
# Up to this many elements of the (B, E, L, N) maps, autograd of the reference is faster
# than a backward that computes them again.
REFERENCE_ELEMENTS = 700_000


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def prefers_reference(
    q, k, v, q_landmarks, k_landmarks, w1_q, *mixing, needs_grad: bool
) -> bool:
    """Return whether a forward and a backward of the reference are faster."""
    heads = q.shape[2] if w1_q is None else len(w1_q)
    elements = q.shape[0] * heads * k_landmarks.shape[1] * q.shape[1]
    return needs_grad and elements <= REFERENCE_ELEMENTS


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


def _tokens_first(x: Tensor, num_images: int) -> Tensor:
    """Reshape (b * M, r, D) to (b, r, M, D)."""
    return x.unflatten(0, (num_images, -1)).transpose(1, 2)


def _per_image(maps: Tensor, num_images: int) -> Tensor:
    """Reshape (b * M, r, S) to (b, M, r * S)."""
    return maps.view(num_images, -1, maps.shape[1] * maps.shape[2])


def _mix(name: str, w: Tensor | None, maps: Tensor, num_images: int) -> Tensor:
    """Multiply (E, M) by (b * M, r, S) over the head axis."""
    if w is None:
        return maps
    maps_b = _per_image(maps, num_images)
    mixed = product(name, w.expand(num_images, -1, -1), maps_b)
    return mixed.view(-1, *maps.shape[1:])


def _mixing_gradient(dy: Tensor, x: Tensor, num_images: int) -> Tensor:
    """Return the gradient of the weights that mix maps `x`."""
    return _per_image(dy, num_images).bmm(_per_image(x, num_images).mT).sum(0)


def _scores(name: str, rows: Tensor, columns: Tensor, scale: float = 1.0):
    """Multiply rows (n, r, D) by columns (n, S, D); the longer side is the last axis.

    Return the products and the axis of the columns.
    """
    if columns.shape[1] >= rows.shape[1]:
        return product(name, rows, columns.mT, scale), 2
    return product(name, columns, rows.mT, scale), 1


def _mixed_forward(q, k, v, w1, w2, *, out):
    """Write (w2 softmax(w1 q k^T / sqrt(D))) v to `out`."""
    B, R, M, D = q.shape
    dtype = compute_dtype(q.dtype)
    row_elements = k.shape[1] * (M if w1 is None else len(w1))
    for images in slices(B, R * row_elements, CHUNK_ELEMENTS):
        b = len(q[images])
        k_b, v_b = (  # (b * M, S, D)
            heads_first(name, x[images], dtype) for name, x in (('k', k), ('v', v))
        )
        for rows in slices(R, b * row_elements, CHUNK_ELEMENTS, MIN_ROWS):
            q_r = heads_first('q', q[images, rows], dtype)  # (b * M, r, D)
            scores, axis = _scores('scores', q_r, k_b, D**-0.5)
            prob = _mix('prob', w1, scores, b)
            torch.softmax(prob, axis, out=prob)
            attn = _mix('scores', w2, prob, b)
            attn = attn if axis == 2 else attn.mT  # (b * M, r, S)
            out[images, rows] = _tokens_first(product('out', attn, v_b), b)


def _mixed_backward(grad, q, k, v, w1, w2):
    """Return the gradients of q, k, v, w1 and w2, given the output's."""
    B, R, M, D = q.shape
    dtype, scale = compute_dtype(q.dtype), D**-0.5
    row_elements = k.shape[1] * (M if w1 is None else len(w1))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dw1, dw2 = (None if w is None else torch.zeros_like(w) for w in (w1, w2))
    for images in slices(B, R * row_elements, CHUNK_ELEMENTS):
        b = len(q[images])
        k_b, v_b = (  # (b * M, S, D)
            heads_first(name, x[images], dtype) for name, x in (('k', k), ('v', v))
        )
        dk_b, dv_b = (
            scratch(name, *k_b.shape, like=k_b).zero_() for name in ('dk', 'dv')
        )
        for rows in slices(R, b * row_elements, CHUNK_ELEMENTS, MIN_ROWS):
            q_r = heads_first('q', q[images, rows], dtype)  # (b * M, r, D)
            grad_r = heads_first('grad', grad[images, rows], dtype)
            scores, axis = _scores('scores', q_r, k_b, scale)
            prob = _mix('prob', w1, scores, b)
            torch.softmax(prob, axis, out=prob)
            dattn, _ = _scores('dattn', grad_r, v_b)
            dprob = dattn
            if w2 is not None:
                dw2 += _mixing_gradient(dattn, prob, b)
                dprob = _mix('dprob', w2.T, dattn, b)
            attn = _mix('dattn', w2, prob, b)
            dv_b.baddbmm_(attn.mT if axis == 2 else attn, grad_r)
            dscores = torch._softmax_backward_data(
                dprob, prob, axis, dtype, grad_input=dprob
            )
            if w1 is not None:
                dw1 += _mixing_gradient(dscores, scores, b)
                dscores = _mix('scores', w1.T, dscores, b)
            dscores = dscores if axis == 2 else dscores.mT  # (b * M, r, S)
            dq_r = product('dq', dscores, k_b, scale)
            dq[images, rows] = _tokens_first(dq_r, b)
            dk_b.baddbmm_(dscores.mT, q_r, alpha=scale)
        dk[images] = _tokens_first(dk_b, b)
        dv[images] = _tokens_first(dv_b, b)
    return dq, dk, dv, dw1, dw2
