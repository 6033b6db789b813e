"""Sums of indexed rows of a table, and products with them."""

import functools
import warnings

import torch
from torch import Tensor


def weighted_sums(table: Tensor, rows: Tensor, begins: Tensor, weights: Tensor):
    """Return weighted sums of rows of a table, one for each bag, shape (bags, D).

    Args:
        table: shape (rows, D).
        rows: indices into the table, bag after bag, shape (count,), int32 or int64.
        begins: where each bag begins in `rows`, shape (bags,), dtype as rows.
        weights: shape (count,).
    """
    return torch.embedding_bag(table, rows, begins, mode=0, per_sample_weights=weights)[
        0
    ]


def sampled_products(left: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return `left[i] . table[rows[i, j]]` for all i and j, shape (R, count).

    Args:
        left: shape (R, D).
        table: shape (rows, D).
        rows: indices into the table, shape (R, count), int32 or int64.
    """
    R, count = rows.shape
    if len(table) < count:  # more entries than a sparse matrix can hold
        return (left @ table.mT).gather(1, rows.long())
    _silence_notice()
    begins = torch.arange(0, R * count + 1, count, dtype=rows.dtype)
    out = torch.sparse_csr_tensor(
        begins,
        rows.flatten(),
        left.new_zeros(R * count),
        (R, len(table)),
        check_invariants=False,
    )
    torch.sparse.sampled_addmm(out, left, table.mT, beta=0.0, out=out)
    return out.values().view(R, count)


@functools.cache
def _silence_notice():
    """Trigger and ignore PyTorch's notice that sparse CSR tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.eye(1).to_sparse_csr()
