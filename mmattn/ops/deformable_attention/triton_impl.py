"""Launchers of the kernels of deformable attention with shared keys, in triton_*.py.

Only one map of queries and keys is stored, the gradient of scores, for the gradient
of the table. It is made for as many queries at a time as fit in a workspace of fixed
size. Programs write shares of a sum, which are added in a fixed order. The first call
that needs Triton imports it.
"""

import torch
from torch import Tensor

from ..triton import launch

MAX_HEAD_WIDTH = 64

# Queries and keys of a tile, and warps, by the padded head width. They are chosen from
# the compiler's reports, so that nothing spills.
FORWARD_TILES = launch.tables_by_dtype(
    'deformable_attention.FORWARD_TILES',
    {
        torch.float32: {16: (64, 32, 8), 32: (64, 32, 8), 64: (64, 16, 8)},
        torch.float16: {16: (64, 32, 4), 32: (64, 32, 4), 64: (64, 32, 8)},
        torch.bfloat16: {w: (64, 32, 4) for w in (16, 32, 64)},
    },
)
QUERIES_TILES = launch.tables_by_dtype(
    'deformable_attention.QUERIES_TILES',
    {
        torch.float32: {16: (64, 32, 8), 32: (64, 16, 8), 64: (32, 32, 8)},
        torch.float16: {16: (64, 32, 8), 32: (64, 32, 8), 64: (64, 32, 8)},
        torch.bfloat16: {16: (64, 16, 4), 32: (64, 32, 4), 64: (32, 32, 4)},
    },
)
KEYS_TILES = launch.tables_by_dtype(
    'deformable_attention.KEYS_TILES',
    {
        torch.float32: {16: (16, 64, 4), 32: (16, 64, 4), 64: (16, 32, 8)},
        torch.float16: {16: (16, 64, 4), 32: (16, 64, 4), 64: (32, 32, 8)},
        torch.bfloat16: {16: (16, 64, 4), 32: (32, 64, 4), 64: (16, 64, 4)},
    },
)
# Rows and columns of queries, and warps, by the cells of a program along each axis.
TABLE_TILES = {16: (16, 16, 1), 32: (16, 16, 1), 64: (16, 16, 2)}
BLOCK = 256  # keys or cells of the table that a program prepares
MAX_CELLS = 64  # of a program along each axis
TARGET_PROGRAMS, MAX_SPLITS = 528, 64
TABLE_PROGRAMS, MAX_TABLE_SPLITS = 1056, 128
WORKSPACE = 2**24  # gradients of scores held at a time


def unsupported(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor
) -> str | None:
    """Return why this backend does not support a call, or None."""
    return launch.reason(q, MAX_HEAD_WIDTH) or launch.offsets_reason(q, k, v)


def forward(q, k, v, positions, table, *, grid, align_corners):
    """Return the output and each row's log-sum-exp (B, M, N) in fp32."""
    B, N, M, D = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = launch.empty(q, B, M, N)
    if B:
        from .triton_fwd import _fwd_kernel

        q, k, v = (launch.unit_stride(x) for x in (q, k, v))
        BQ, BK, options = _options(FORWARD_TILES, q)
        blocks = launch.cdiv(N, BQ)
        geometry, origins = _geometry(positions, table, grid, align_corners)
        unit_step = _is_unit_step(table, grid, align_corners)
        with torch.cuda.device_of(q):
            _fwd_kernel[(B * M * blocks,)](
                q, k, v, *_bias(positions, table, origins, unit_step), out, lse,
                *launch.strides(q, k, v),
                N, k.shape[1], M, blocks=blocks, scale=D**-0.5, BQ=BQ, BK=BK,
                UNIT_STEP=unit_step, **geometry, **options,
            )  # fmt: skip
    return out, lse


def backward(grad, out, lse, q, k, v, positions, table, *, grid, align_corners):
    """Return the gradients of q, k, v, positions and table."""
    if not len(q):
        return launch.zeros(q, k, v, positions, table)
    grad, q, k, v = (launch.unit_stride(x) for x in (grad, q, k, v))
    geometry, origins = _geometry(positions, table, grid, align_corners)
    unit_step = _is_unit_step(table, grid, align_corners)
    settings = geometry | dict(UNIT_STEP=unit_step, scale=q.shape[3] ** -0.5)
    with torch.cuda.device_of(q):
        inputs = (q, k, v, grad, *_bias(positions, table, origins, unit_step))
        dq, delta, dtable = _backward_queries(
            inputs, out, lse, grid, geometry, settings
        )
        slopes = {name: origins[name] for name in ('slope_y', 'slope_x')}
        dk, dv, dpositions = _backward_keys(inputs, lse, delta, settings | slopes)
    return dq, dk, dv, dpositions.to(positions.dtype), dtable.to(table.dtype)


def _is_unit_step(table: Tensor, grid, align_corners: bool) -> bool:
    H, W = grid
    return align_corners and table.shape[1:] == (2 * H - 1, 2 * W - 1)


def _geometry(positions, table, grid, align_corners) -> tuple[dict, dict]:
    """Return sizes, and the terms of place(query) = offset - slope * position + step *
    query: the step, and the others. Place 1 is that of the table's first entry."""
    origins = {}
    geometry = dict(W=grid[1], TH=table.shape[1], TW=table.shape[2])
    geometry['group_heads'] = len(table) // positions.shape[1]
    for axis, side, cells in zip('yx', grid, table.shape[1:], strict=True):
        span = max(side - 1, 1) if align_corners else side
        slope = (cells - 1) / 4
        origins[f'slope_{axis}'] = slope
        geometry[f'step_{axis}'] = 2 * slope / span
        origins[f'offset_{axis}'] = 1 + slope * (2 - (side - 1) / span)
    return geometry, origins


def _bias(positions, table, origins: dict, unit_step: bool) -> tuple[Tensor, Tensor]:
    """Return the places of keys and the cells of the table, see `triton_fwd.py`."""
    from .triton_fwd import _cells_kernel, _places_kernel

    options = dict(BLOCK=BLOCK, num_warps=4, **launch.COMPILER)
    M, TH, TW = table.shape
    cells = launch.empty(table, M, TH + 2, TW + 2, 4)
    _cells_kernel[(M * launch.cdiv((TH + 2) * (TW + 2), BLOCK),)](
        table.contiguous(), cells, TH, TW, **options
    )
    num_keys = positions.numel() // 2
    places = launch.empty(table, *positions.shape[:3], 4)
    _places_kernel[(launch.cdiv(num_keys, BLOCK),)](
        positions.contiguous(), places, num_keys, UNIT_STEP=unit_step, **origins,
        **options,
    )  # fmt: skip
    return places, cells


def _options(tiles: dict, q: Tensor) -> tuple[int, int, dict]:
    """Return queries and keys of a tile, and the options of a launch.

    More than one stage would stage reads of the table in shared memory, with bank
    conflicts.
    """
    D = q.shape[3]
    DP = launch.power_of_two(D, 16)
    BQ, BK, num_warps = tiles[q.dtype][DP]
    return BQ, BK, dict(
        D=D, DP=DP, NATIVE=launch.is_native(q), PRECISION=launch.precision(q),
        num_warps=num_warps, num_stages=1, **launch.COMPILER,
    )  # fmt: skip


def _backward_queries(inputs, out, lse, grid, geometry, settings):
    """Return dq, delta and the gradient of the table.

    A launch takes as many images, or rows of queries, as the workspace has room for.
    """
    from .triton_bwd import _bwd_queries_kernel

    q, k, v, grad, places, _ = inputs
    (B, N, M, _), K, (H, W) = q.shape, k.shape[1], grid
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    delta = launch.empty(q, B, M, N)
    BQ, BK, options = _options(QUERIES_TILES, q)
    images = min(B, max(1, WORKSPACE // (M * K * N)))
    num_rows = min(H, max(1, WORKSPACE // (images * M * K * W)))
    workspace = launch.empty(q, images * M * K * num_rows * W)
    dtable = torch.zeros(
        M, geometry['TH'], geometry['TW'], dtype=torch.float32, device=q.device
    )
    for image in range(0, B, images):
        for row in range(0, H, num_rows):
            count, rows = min(images, B - image), min(num_rows, H - row)
            blocks = launch.cdiv(rows * W, BQ)
            _bwd_queries_kernel[(count * M * blocks,)](
                *inputs, out, lse, delta, dq, workspace, *launch.strides(q, k, v, grad),
                N, K, M, first_image=image, first_query=row * W, num_queries=rows * W,
                blocks=blocks, BQ=BQ, BK=BK, **settings, **options,
            )  # fmt: skip
            dtable += _table_gradient(
                workspace, places, K, M, geometry, launch.precision(q),
                first_image=image, first_row=row, num_rows=rows, num_keys=count * K,
            )  # fmt: skip
    return dq, delta, dtable


def _table_gradient(workspace, places, K, M, geometry, precision, *, num_keys, **part):
    from .triton_bwd import _bwd_table_kernel

    TH, TW = geometry['TH'], geometry['TW']
    BY, BX = (min(MAX_CELLS, launch.power_of_two(side, 16)) for side in (TH, TW))
    tiles_y, tiles_x = launch.cdiv(TH, BY), launch.cdiv(TW, BX)
    programs = M * tiles_y * tiles_x
    splits, keys_of_split = launch.split(
        num_keys, programs, TABLE_PROGRAMS, MAX_TABLE_SPLITS
    )
    BH, BW, num_warps = TABLE_TILES[max(BY, BX)]
    shares = launch.empty(workspace, splits, M, TH, TW)
    _bwd_table_kernel[(programs * splits,)](
        workspace, places, shares, K, M, num_keys=num_keys, tiles_y=tiles_y,
        tiles_x=tiles_x, splits=splits, keys_of_split=keys_of_split, BY=BY, BX=BX,
        BH=BH, BW=BW, PRECISION=precision, num_warps=num_warps, num_stages=1, **part,
        **geometry, **launch.COMPILER,
    )  # fmt: skip
    return shares.sum(0)


def _backward_keys(inputs, lse, delta, settings):
    """Return the gradients of k, v and positions."""
    from .triton_bwd import _bwd_keys_kernel

    q, k, v, grad, places, _ = inputs
    (B, N, M, D), K, G = q.shape, k.shape[1], places.shape[1]
    BQ, BK, options = _options(KEYS_TILES, q)
    blocks = launch.cdiv(K, BK)
    splits, blocks_of_split = launch.split(
        launch.cdiv(N, BQ), B * M * blocks, TARGET_PROGRAMS, MAX_SPLITS
    )
    dk, dv = (launch.empty(q, splits, B, K, M, D) for _ in range(2))
    dpositions = launch.empty(q, splits, B, M, K, 2)
    _bwd_keys_kernel[(B * M * blocks * splits,)](
        *inputs, lse, delta, dk, dv, dpositions, *launch.strides(q, k, v, grad), B, N, K, M,
        blocks=blocks, splits=splits, blocks_of_split=blocks_of_split, BQ=BQ, BK=BK,
        **settings, **options,
    )  # fmt: skip
    dpositions = dpositions.view(splits, B, G, M // G, K, 2).sum((0, 3))
    return dk.sum(0).to(q.dtype), dv.sum(0).to(q.dtype), dpositions
