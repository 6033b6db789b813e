"""Contract, checks, autograd and dispatch of attention to keys that queries share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backend import check_cotangent, is_autocast_on, select_backend
from . import cpu_impl, reference, triton_impl
from .checks import check_dims

OPERATOR = 'deformable_attention_v2'
BACKENDS = {'triton': triton_impl, 'cpu': cpu_impl, 'reference': reference}


def deformable_attention_v2(
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
    """Attention of a grid of queries to keys that were sampled at any positions.

    `out = softmax(q k^T / sqrt(D) + bias) v`, where the bias of a query and a key is
    read from a table at their displacement, bilinearly and with zeros outside:
    `bias = grid_sample(table, (position of query - position of key) / 2,
    align_corners=True)`. From "Vision Transformer with Deformable Attention",
    https://arxiv.org/abs/2201.00520, equations 7 and 9, and "DAT++",
    https://arxiv.org/abs/2309.01430. B batch, N = H * W queries in row-major order, K
    keys, M heads, D head width, G offset groups.

    Args:
        q: shape (B, N, M, D), float32, float16, bfloat16 or float64. Scores, bias and
            softmax are in float32 (float64 in float64).
        k, v: shape (B, K, M, D), dtype as q.
        grid: H and W of the queries.
        positions: of the keys, normalized (x, y), shape (B, G, K, 2); G divides M, and
            group g has the heads [g * M / G, (g + 1) * M / G).
        table: shape (M, Th, Tw), any size. With (2 H - 1, 2 W - 1) and `align_corners`
            a step from query to query is a step in the table, which is the fastest.
        align_corners: where the queries are, as in `grid_sample`: whether the centers
            (DAT++) or the outer edges (DAT) of the outer pixels lie at -1 and 1. The
            only pixel of a side lies at 0.
        backend: 'triton', 'cpu', 'reference', or None to take the fastest one that can
            run the call. 'reference' runs by itself in forward mode and under
            `torch.func.grad`.

    Returns:
        Shape (B, N, M, D), dtype as q. Under autocast q, k and v are cast to autocast's
        dtype first. Differentiable with respect to q, k, v, positions and table.

    Raises:
        ValueError: shapes, dtypes, devices or settings disagree, or `backend` cannot
            run this.

    Example:
        >>> q, k, v = (torch.randn(2, n, 8, 32) for n in (28 * 28, 49, 49))
        >>> positions = torch.rand(2, 4, 49, 2) * 2 - 1
        >>> table = torch.randn(8, 55, 55)
        >>> deformable_attention_v2(q, k, v, (28, 28), positions, table).shape
        torch.Size([2, 784, 8, 32])
    """
    device_type = q.device.type
    if is_autocast_on(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return deformable_attention_v2(
                *(x.to(dtype) for x in (q, k, v)),
                grid,
                positions,
                table,
                align_corners=align_corners,
                backend=backend,
            )
    tensors = q, k, v, positions, table
    grid = _check(*tensors, grid)
    backend = select_backend(OPERATOR, backend, BACKENDS, *tensors)
    if backend == 'reference' or (
        backend == 'cpu' and cpu_impl.prefers_definition(q, k)
    ):
        return reference.deformable_attention_v2_reference(
            *tensors, grid=grid, align_corners=align_corners
        )
    return torch.ops.mmattn.deformable_attention_v2(
        *tensors, grid, align_corners, backend
    )[0]


def _check(q, k, v, positions, table, grid):
    """Returns the grid."""
    B, N, M, D = check_dims('q', q, 4)
    K = check_dims('k', k, 4)[1]
    G = check_dims('positions', positions, 4)[1]
    check_dims('table', table, 3)
    if 0 in (N, M, D, K, G):
        raise ValueError(
            f'needs queries, keys, heads, groups and channels, got {N=}, {K=}, {M=}, '
            f'{G=}, {D=}'
        )
    shapes = {
        'k': (k, (B, K, M, D)),
        'v': (v, (B, K, M, D)),
        'positions': (positions, (B, G, K, 2)),
        'table': (table, (M, *table.shape[1:])),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(
                f'{name} must have shape {shape}, got {tuple(tensor.shape)}'
            )
    if 0 in table.shape:
        raise ValueError(f'table must not be empty, got {tuple(table.shape)}')
    if M % G:
        raise ValueError(f'{M} heads do not split into {G} groups')
    if len({x.dtype for x in (q, k, v)}) > 1:
        raise ValueError(
            f'q, k and v must have one dtype, got {[str(x.dtype) for x in (q, k, v)]}'
        )
    devices = {str(x.device) for x in (q, k, v, positions, table)}
    if len(devices) > 1:
        raise ValueError(f'all tensors must be on one device, got {sorted(devices)}')
    grid = tuple(grid)
    if len(grid) != 2 or grid[0] * grid[1] != N:
        raise ValueError(f'{N} queries are not a grid {grid}')
    return grid


TENSORS = 'Tensor q, Tensor k, Tensor v, Tensor positions, Tensor table'
SETTINGS = 'SymInt[] grid, bool align_corners, str backend'


@torch.library.custom_op(
    'mmattn::deformable_attention_v2',
    mutates_args=(),
    schema=f'({TENSORS}, {SETTINGS}) -> (Tensor, Tensor)',
)
def _forward(*args):
    """Output, and the log of each row's sum of exponentials (B, M, N)."""
    *tensors, grid, align_corners, backend = args
    return BACKENDS[backend].forward(*tensors, grid=grid, align_corners=align_corners)


@_forward.register_fake
def _(q, k, v, positions, table, grid, align_corners, backend):
    B, N, M, _ = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty(B, M, N, dtype=dtype),
    )


@torch.library.custom_op(
    'mmattn::deformable_attention_v2_backward',
    mutates_args=(),
    schema=f'(Tensor grad, Tensor out, Tensor lse, {TENSORS}, {SETTINGS}) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def _backward(*args):
    """Gradients of q, k, v, positions and table."""
    *tensors, grid, align_corners, backend = args
    with torch.autocast(tensors[0].device.type, enabled=False):
        return BACKENDS[backend].backward(
            *tensors, grid=grid, align_corners=align_corners
        )


@_backward.register_fake
def _(grad, out, lse, q, k, v, positions, table, *settings):
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in (q, k, v, positions, table)
    )


def _setup_context(ctx, inputs, output):
    ctx.settings = inputs[5:]
    ctx.save_for_backward(*output, *inputs[:5])


def _autograd(ctx, grad, grad_lse):
    check_cotangent(OPERATOR, grad)
    grads = torch.ops.mmattn.deformable_attention_v2_backward(
        grad, *ctx.saved_tensors, *ctx.settings
    )
    return *grads, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
