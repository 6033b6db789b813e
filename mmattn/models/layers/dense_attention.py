"""Dot-product attention of all queries to all keys."""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

from mmattn.ops import deformable_attention
from mmattn.ops.common.derivatives import runs_eagerly
from mmattn.ops.common.graph_nodes import takes_nodes
from mmattn.ops.common.operator import OPERATORS

# In float32 PyTorch is as fast for fewer keys or scores of a head.
MIN_KEYS, MIN_SCORES = 128, 1 << 16


def dense_attention(q: Tensor, k: Tensor, v: Tensor, grid: Sequence[int]) -> Tensor:
    """Compute `F.scaled_dot_product_attention`, on a CPU by our kernel if it is faster.

    PyTorch's kernel multiplies by the BLAS, which may use neither the AVX-512 nor the
    bfloat16 of a CPU. Our deformable attention is plain attention where its table has
    one number. Traced and exported graphs, and modes that watch functions, get
    PyTorch's.

    Args:
        q: shape (B, N, M, D).
        k, v: shape (B, K, M, D).
        grid: sides of the queries' map, whose product is N.

    Returns:
        Shape (B, N, M, D).
    """
    if _may_be_faster(q, k, v):
        B, K, M, _ = k.shape
        bias = torch.zeros(B, 1, K, 2), torch.zeros(M, 1, 1)
        if OPERATORS['deformable_attention'].choose(q, k, v, *bias) == 'cpp':
            grid = prod(grid[:-1]), grid[-1]
            return deformable_attention(q, k, v, grid, *bias, backend='cpp')
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _may_be_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    if q.device.type != 'cpu' or has_torch_function((q, k, v)):
        return False
    follows = takes_nodes if torch.compiler.is_compiling() else runs_eagerly
    if not follows(q, k, v):
        return False  # before sizes, which a trace would keep
    if q.dtype.itemsize == 2 or torch.is_autocast_enabled('cpu'):
        return True
    N, K = q.shape[1], k.shape[1]
    return K >= MIN_KEYS and N * K >= MIN_SCORES
