"""Landmark attention for CPUs: batched matrix products over cache-sized row chunks.

Both halves of the operator are one function, `mixed attention`: rows attend to columns,
heads are mixed before and after the softmax. A chunk holds whole rows of one image, so
its softmax is complete, its maps stay in cache, and the backward recomputes them
instead of reading them back from memory.
"""

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 18  # of one (E, rows, S) map: 1 MiB in float32


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    if q.device.type not in ('cpu', 'meta'):
        return f'it runs on the CPU, the tensors are on {q.device}'
    return None


def num_statistics(q: Tensor, k_landmarks: Tensor, w1_q, w1_k) -> int:
    """Softmax statistics are recomputed, none are saved."""
    return 0


def forward(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Returns the output, the context `A_K v` in the compute dtype, no statistics."""
    dtype = _compute_dtype(q)
    w1_q, w2_q, w1_k, w2_k = (_to(w, dtype) for w in (w1_q, w2_q, w1_k, w2_k))
    context = torch.empty(q_landmarks.shape, dtype=dtype)
    _mixed_forward(q_landmarks, k, v, w1_k, w2_k, out=context)
    out = torch.empty(q.shape, dtype=q.dtype)
    _mixed_forward(q, k_landmarks, context, w1_q, w2_q, out=out)
    return out, context, q.new_empty(0, dtype=dtype)


def backward(
    grad, context, statistics, q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Gradients of q, k, v, q_landmarks, k_landmarks and the four mixing weights."""
    dtype = _compute_dtype(q)
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


def _compute_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _to(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _row_chunks(num_rows: int, num_columns: int, num_maps: int):
    step = max(1, CHUNK_ELEMENTS // max(1, num_columns * num_maps))
    return [slice(i, i + step) for i in range(0, num_rows, step)]


def _mix(w: Tensor | None, maps: Tensor) -> Tensor:
    """(E, M) times (M, r, S) over the head axis."""
    return maps if w is None else (w @ maps.flatten(1)).view(-1, *maps.shape[1:])


def _mixed_forward(q, k, v, w1, w2, *, out):
    """Writes (w2 softmax(w1 q k^T / sqrt(D))) v to `out`; w1 and w2 give the dtype."""
    _, R, M, D = q.shape
    dtype = _compute_dtype(q)
    for q_b, k_b, v_b, out_b in zip(q, k, v, out, strict=True):
        k_b, v_b = (x.to(dtype).transpose(0, 1) for x in (k_b, v_b))  # (M, S, D)
        k_b = k_b.transpose(1, 2) * D**-0.5
        num_maps = M if w1 is None else len(w1)
        for rows in _row_chunks(R, k_b.shape[2], num_maps):
            q_r = q_b[rows].to(dtype).transpose(0, 1)  # (M, r, D)
            attn = _mix(w2, _mix(w1, q_r @ k_b).softmax(dim=-1))
            out_b[rows] = (attn @ v_b).transpose(0, 1)


def _mixed_backward(grad, q, k, v, w1, w2):
    """Gradients of q, k, v, w1, w2, given the gradient of `_mixed_forward`'s `out`."""
    _, R, M, D = q.shape
    dtype = _compute_dtype(q)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dw1, dw2 = (None if w is None else torch.zeros_like(w) for w in (w1, w2))
    for b in range(len(q)):
        k_b, v_b = (x[b].to(dtype).transpose(0, 1) for x in (k, v))  # (M, S, D)
        k_b = k_b * D**-0.5
        dk_b, dv_b = torch.zeros_like(k_b), torch.zeros_like(v_b)
        num_maps = M if w1 is None else len(w1)
        for rows in _row_chunks(R, k_b.shape[1], num_maps):
            q_r, grad_r = (x[b, rows].to(dtype).transpose(0, 1) for x in (q, grad))
            scores = q_r @ k_b.transpose(1, 2)  # (M, r, S)
            prob = _mix(w1, scores).softmax(dim=-1)  # (E, r, S)
            dattn = grad_r @ v_b.transpose(1, 2)
            dv_b.baddbmm_(_mix(w2, prob).transpose(1, 2), grad_r)
            if w2 is None:
                dprob = dattn
            else:
                dw2.addmm_(dattn.flatten(1), prob.flatten(1).T)
                dprob = _mix(w2.T, dattn)
            dscores = torch._softmax_backward_data(dprob, prob, -1, prob.dtype)
            if w1 is not None:
                dw1.addmm_(dscores.flatten(1), scores.flatten(1).T)
                dscores = _mix(w1.T, dscores)
            dq[b, rows] = (dscores @ k_b).transpose(0, 1)
            dk_b.baddbmm_(dscores.transpose(1, 2), q_r)
        dk[b] = dk_b.mul_(D**-0.5).transpose(0, 1)
        dv[b] = dv_b.transpose(0, 1)
    return dq, dk, dv, dw1, dw2
