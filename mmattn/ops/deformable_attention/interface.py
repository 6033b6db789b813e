"""Deformable attention: arguments, checks and the operator."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from mmattn.errors import UserError

from ..common.checks import (
    check_dims,
    check_not_empty,
    check_one_device,
    check_one_dtype,
    check_shape,
)
from ..common.inspection import Flops
from ..common.operator import Operator, out_and_statistics
from ..common.precision import cast_under_autocast, without_autocast
from . import cpp_impl, reference, torch_impl, triton_impl
from .decomposition import deformable_attention_decomposition


def deformable_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Sequence[int],
    positions: Tensor,
    table: Tensor,
    *,
    align_corners: bool = True,
    backend: str | None = None,
) -> Tensor:
    """Attend from a grid of queries to keys that were sampled at any positions.

    `out = softmax(q k^T / sqrt(D) + bias) v`, where the bias of a query and a key is
    read from a table at their displacement, bilinearly and with zeros outside:
    `bias = grid_sample(table, (position of query - position of key) / 2,
    align_corners=True)`. From "Vision Transformer with Deformable Attention",
    https://arxiv.org/abs/2201.00520, equations 7 and 9, and "DAT++",
    https://arxiv.org/abs/2309.01430. B batch, N = H * W queries in row-major order, K
    keys, M heads, D head width, G offset groups.

    Args:
        q: shape (B, N, M, D), float32, float16, bfloat16 or float64. Scores, bias and
            softmax are computed in float32, or in float64 for float64.
        k, v: shape (B, K, M, D), dtype as q.
        grid: H and W of the queries.
        positions: normalized (x, y) of the keys, shape (B, G, K, 2). G divides M, and
            group g has the heads [g * M / G, (g + 1) * M / G).
        table: shape (M, Th, Tw), of any size. With the size (2 H - 1, 2 W - 1) and
            `align_corners` a step from query to query is a step in the table.
        align_corners: places the queries as `grid_sample` does. True puts the centers
            of the outer pixels at -1 and 1, as DAT++ does, and False their outer edges,
            as DAT does. The only pixel of a side lies at 0.
        backend: 'triton', 'cpp', 'torch', 'reference', or None for the fastest one that
            supports the call. It is 'reference' in forward mode and under
            `torch.func.grad`.

    Returns:
        Shape (B, N, M, D), dtype as q. Under autocast q, k and v are cast to autocast's
        dtype first. Differentiable with respect to q, k, v, positions and table.

    Raises:
        ValueError: shapes, dtypes, devices or settings disagree, or `backend` does not
            support the call.

    Example:
        >>> import torch
        >>> q, k, v = (torch.randn(2, n, 8, 32) for n in (28 * 28, 49, 49))
        >>> positions = torch.rand(2, 4, 49, 2) * 2 - 1
        >>> table = torch.randn(8, 55, 55)
        >>> deformable_attention(q, k, v, (28, 28), positions, table).shape
        torch.Size([2, 784, 8, 32])
    """
    tensors = *cast_under_autocast(q, k, v), positions, table
    settings = dict(grid=_check(*tensors, grid), align_corners=align_corners)
    with without_autocast(q):
        return OPERATOR(*tensors, backend=backend, **settings)


def _check(q, k, v, positions, table, grid):
    """Return the grid as a tuple."""
    B, N, M, D = check_dims('q', q, 4)
    K = check_dims('k', k, 4)[1]
    G = check_dims('positions', positions, 4)[1]
    check_dims('table', table, 3)
    check_not_empty(N=N, K=K, M=M, D=D, G=G)
    check_shape('k', k, (B, K, M, D))
    check_shape('v', v, (B, K, M, D))
    check_shape('positions', positions, (B, G, K, 2))
    check_shape('table', table, (M, *table.shape[1:]))
    if 0 in table.shape:
        raise UserError(f'`table` must not be empty, got {tuple(table.shape)}')
    if M % G:
        raise UserError(f'the groups must divide the heads, got {G=} and {M=}')
    check_one_dtype(q=q, k=k, v=v)
    check_one_device(q, k, v, positions, table)
    grid = tuple(grid)
    if len(grid) != 2 or grid[0] * grid[1] != N:
        raise UserError(f'`grid` must have {N} queries, got {grid}')
    return grid


def _example(device: str, dtype: torch.dtype) -> tuple[tuple, dict]:
    """Return the tensors and the settings of a small call."""
    tensors = (
        torch.randn(shape, device=device).to(dtype)
        for shape in ((2, 35, 4, 8), (2, 11, 4, 8), (2, 11, 4, 8))
    )
    positions, table = (
        torch.rand(shape, device=device) for shape in ((2, 2, 11, 2), (4, 13, 9))
    )
    return (*tensors, positions, table), dict(grid=(7, 5), align_corners=True)


def _flops(q, k, *args, **kwargs) -> int:
    """Count a score and a product with v for each pair; the bias counts nothing."""
    return 2 * 2 * prod(q) * k[1]


def _outputs(q, *tensors, backend, **settings):
    out, lse = out_and_statistics(q, backend=backend)
    return out, lse.new_empty(*lse.shape, 1 + q.shape[3]) if backend == 'cpp' else lse


OPERATOR = Operator(
    'deformable_attention',
    reference.deformable_attention_reference,
    {'triton': triton_impl, 'cpp': cpp_impl, 'torch': torch_impl},
    tensors='Tensor q, Tensor k, Tensor v, Tensor positions, Tensor table',
    settings='SymInt[] grid, bool align_corners',
    outputs=_outputs,
    example=_example,
    flops=Flops(_flops),
    saved=('out', 'lse'),
    decomposition=deformable_attention_decomposition,
)
