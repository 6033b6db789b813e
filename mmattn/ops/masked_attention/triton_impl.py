"""Launchers of the kernels of masked attention, in triton_*.py.

Hard masks are linear in the tokens, and soft masks (alpha) quadratic. Programs write
shares of a sum over tokens, which are added in a fixed order. The first call that needs
Triton imports it.
"""

import torch
from torch import Tensor

from ..triton import launch

MAX_HEAD_WIDTH = 128

# By the padded head width. Chosen from the compiler's reports, so that nothing spills.
FORWARD_TILES = launch.TileTable(
    'masked_attention.FORWARD_TILES',
    {  # height and width of a tile of patches, warps
        16: (8, 8, 4),
        32: (8, 8, 4),
        64: (4, 8, 4),
        128: (4, 8, 8),
    },
)
BACKWARD_TILES = launch.TileTable(
    'masked_attention.BACKWARD_TILES',
    {16: (8, 8, 4), 32: (4, 8, 4), 64: (4, 8, 4), 128: (4, 8, 8)},
)
# Rows of a program, rows it takes at a time, warps.
SOFT_FORWARD_TILES = launch.tables_by_dtype(
    'masked_attention.SOFT_FORWARD_TILES',
    {
        torch.float32: {
            16: (64, 32, 4),
            32: (64, 32, 4),
            64: (64, 16, 4),
            128: (64, 32, 8),
        },
        torch.float16: {w: (64, 32, 4 if w <= 64 else 8) for w in (16, 32, 64, 128)},
        torch.bfloat16: {w: (128, 64 if w <= 32 else 32, 8) for w in (16, 32, 64, 128)},
    },
)
SOFT_BACKWARD_TILES = launch.tables_by_dtype(
    'masked_attention.SOFT_BACKWARD_TILES',
    {
        torch.float32: {w: (64 if w <= 32 else 32, 16, 4) for w in (16, 32, 64, 128)},
        torch.float16: {
            16: (64, 32, 4),
            32: (64, 32, 4),
            64: (64, 32, 8),
            128: (32, 32, 8),
        },
        torch.bfloat16: {w: (64 if w <= 64 else 32, 32, 4) for w in (16, 32, 64, 128)},
    },
)
WIDE, CHUNK = 32, 16  # wider heads in fp32 are read in chunks of channels
ROWS_OF_SPLIT = {16: 64, 32: 64, 64: 32, 128: 32}
TARGET_PROGRAMS, MAX_SPLITS = 528, 64


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return launch.reason(q, MAX_HEAD_WIDTH) or launch.offsets_reason(q, *tensors[:2])


def forward(q, k, v, bias, alpha, *, grid, kernel_size, num_special, mask_fill):
    """Return the output and each row's log-sum-exp (B, M, N) in fp32."""
    B, N, M, D = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = launch.empty(q, B, M, N)
    if not B:
        return out, lse
    q, k, v = (launch.unit_stride(x) for x in (q, k, v))
    with torch.cuda.device_of(q):
        if alpha is not None:
            mask = dict(W=grid[1], S=num_special, R=kernel_size)
            _soft_forward(q, k, v, alpha, out, lse, mask)
            return out, lse
        from .triton_stencil import _fwd_kernel

        stencil = _stencil(grid, kernel_size, num_special, mask_fill)
        mean = _special_forward(q, k, v, out, lse, stencil)
        tiles, options = _tiles(FORWARD_TILES, q, stencil)
        if tiles:
            _fwd_kernel[(B * M * tiles,)](
                q, k, v, _contiguous(bias), mean, out, lse, *launch.strides(q, k, v),
                M=M, scale=D**-0.5, **options,
            )  # fmt: skip
    return out, lse


def backward(
    grad, out, lse, q, k, v, bias, alpha, *, grid, kernel_size, num_special, mask_fill
):
    """Return the gradients of q, k, v, bias and alpha."""
    if not len(q):
        return launch.zeros(q, k, v, bias, alpha)
    grads = [torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)]
    grad, q, k, v = (launch.unit_stride(x) for x in (grad, q, k, v))
    with torch.cuda.device_of(q):
        if alpha is None:
            stencil = _stencil(grid, kernel_size, num_special, mask_fill)
            dbias = _hard_backward(grad, out, lse, q, k, v, bias, grads, stencil)
            return *grads, dbias, None
        mask = dict(W=grid[1], S=num_special, R=kernel_size)
        dalpha = _soft_backward(grad, out, lse, q, k, v, alpha, grads, mask)
        return *grads, None, dalpha


def _stencil(grid, kernel_size, num_special, mask_fill) -> dict:
    """Return what kernels of hard masks are launched with."""
    return dict(
        H=grid[0], W=grid[1], S=num_special, R=kernel_size,
        ZERO=int(mask_fill == 'zero'),
    )  # fmt: skip


def _widths(q: Tensor) -> dict:
    D = q.shape[3]
    return dict(D=D, DP=launch.power_of_two(D, 16), **launch.COMPILER)


def _tiles(tiles: dict, q: Tensor, stencil: dict) -> tuple[int, dict]:
    """Return the number of tiles of a head, and the options of a launch over them."""
    widths = _widths(q)
    TH, TW, num_warps = tiles[widths['DP']]
    count = launch.cdiv(stencil['H'], TH) * launch.cdiv(stencil['W'], TW)
    R, S, DP = stencil['R'], stencil['S'], widths['DP']
    TAPS = 9 if (R, S, DP) == (3, 0, 32) else R if DP <= 64 else 1  # or it would spill
    constants = dict(TAPS=TAPS, TH=TH, TW=TW, num_warps=num_warps, num_stages=1)
    return count, stencil | widths | constants


def _special_forward(q, k, v, out, lse, stencil) -> Tensor | None:
    """Write the special rows. Return the mean of v (B, M, D) if patches need it."""
    from .triton_special import _special_merge_kernel, _special_split_kernel

    B, N, M, D = q.shape
    rows = stencil['S'] + stencil['ZERO']
    mean = launch.empty(q, B, M, D) if stencil['ZERO'] else None
    if rows:
        widths = _widths(q)
        BN = ROWS_OF_SPLIT[widths['DP']]
        splits, blocks = launch.split(
            launch.cdiv(N, BN), B * M * rows, TARGET_PROGRAMS, MAX_SPLITS
        )
        stats, acc = (launch.empty(q, B, M, rows, splits, x) for x in (2, D))
        _special_split_kernel[(B * M * rows * splits,)](
            q, k, v, stats, acc, *launch.strides(q, k, v),
            N, M, stencil['S'], rows, splits, blocks, D**-0.5,
            BN=BN, num_warps=4, num_stages=1, **widths,
        )  # fmt: skip
        _special_merge_kernel[(B * M * rows,)](
            stats, acc, out, lse, mean, N, M, stencil['S'], rows, splits,
            SP=launch.power_of_two(splits, 1), num_warps=4, **widths,
        )  # fmt: skip
    return mean


def _hard_backward(grad, out, lse, q, k, v, bias, grads, stencil) -> Tensor | None:
    """Write the gradients of q, k and v; return the gradient of bias."""
    from .triton_special import _bwd_special_kernel
    from .triton_stencil_bwd import _bwd_keys_kernel, _bwd_queries_kernel

    B, N, M, D = q.shape
    S, ZERO, R = (stencil[name] for name in ('S', 'ZERO', 'R'))
    delta = launch.empty(q, B, M, N)
    rest = launch.empty(q, B, M, N) if ZERO else None
    if S:
        _delta(grad, out, delta, S)
    tiles, options = _tiles(BACKWARD_TILES, q, stencil)
    programs = (B * M * tiles,)
    settings = dict(M=M, scale=D**-0.5, **options)
    dq, dk, dv = grads
    strides = launch.strides(q, k, v, grad)
    kernel_bias = _contiguous(bias)
    dbias = None if bias is None else launch.empty(q, B, tiles, M, R * R)
    sums = launch.empty(q, B, M, 2 * S + ZERO, tiles, D) if S or ZERO else None
    sums_q = launch.empty(q, B, M, S, tiles, D) if S else None
    if tiles:
        _bwd_queries_kernel[programs](
            q, k, v, grad, out, kernel_bias, lse, delta, rest, dq, sums, dbias,
            *strides, **settings,
        )  # fmt: skip
    sums = None if sums is None else sums.sum(3)
    if tiles:
        _bwd_keys_kernel[programs](
            q, k, v, grad, kernel_bias, lse, delta, rest, sums, dk, dv, sums_q,
            *strides, **settings,
        )  # fmt: skip
    if S:
        _bwd_special_kernel[(B * M * S,)](
            q, k, v, grad, lse, delta, sums, sums_q.sum(3), dq, dk, dv, *strides,
            N, M, S, D**-0.5, ZERO=ZERO, num_warps=1, **_widths(q),
        )  # fmt: skip
    return None if bias is None else dbias.sum((0, 1)).view(bias.shape).to(bias.dtype)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _delta(grad, out, delta, rows: int):
    """Write grad . out of the first `rows` tokens."""
    from .triton_special import _delta_kernel

    B, N, M, _ = out.shape
    widths = _widths(out)
    BN = min(ROWS_OF_SPLIT[widths['DP']], launch.power_of_two(rows, 1))
    blocks = launch.cdiv(rows, BN)
    _delta_kernel[(B * M * blocks,)](
        grad, out, delta, *launch.strides(grad), N, M, rows, blocks,
        BN=BN, num_warps=4, **widths,
    )  # fmt: skip


def _soft_options(q: Tensor) -> dict:
    """Return the options of a launch for soft masks; see `triton_launch.precision`."""
    widths, is_full = _widths(q), q.dtype == torch.float32
    return dict(
        BD=CHUNK if is_full and widths['DP'] > WIDE else widths['DP'],
        NATIVE=launch.is_native(q),
        PRECISION=launch.precision(q), num_stages=2, **widths,
    )  # fmt: skip


def _soft_forward(q, k, v, alpha, out, lse, mask):
    from .triton_soft import _soft_fwd_kernel

    B, N, M, D = q.shape
    options = _soft_options(q)
    BQ, BK, num_warps = SOFT_FORWARD_TILES[q.dtype][options['DP']]
    blocks = launch.cdiv(N, BQ)
    _soft_fwd_kernel[(B * M * blocks,)](
        q, k, v, alpha.contiguous(), out, lse, *launch.strides(q, k, v), N, M, blocks=blocks,
        scale=D**-0.5, BQ=BQ, BK=BK, num_warps=num_warps, **mask, **options,
    )  # fmt: skip


def _soft_backward(grad, out, lse, q, k, v, alpha, grads, mask) -> Tensor:
    """Write the gradients of q, k and v; return the gradient of alpha."""
    from .triton_soft import _soft_bwd_keys_kernel, _soft_bwd_queries_kernel

    B, N, M, D = q.shape
    dq, dk, dv = grads
    delta = launch.empty(q, B, M, N)
    _delta(grad, out, delta, N)
    options = _soft_options(q) | mask | dict(scale=D**-0.5)
    long, short, num_warps = SOFT_BACKWARD_TILES[q.dtype][options['DP']]
    blocks = launch.cdiv(N, long)
    options |= dict(num_warps=num_warps, blocks=blocks)
    inputs = (q, k, v, grad, alpha.contiguous(), lse, delta)
    strides = launch.strides(q, k, v, grad)
    dalpha = launch.empty(q, B, M, blocks)
    _soft_bwd_queries_kernel[(B * M * blocks,)](
        *inputs, dq, dalpha, *strides, N, M, BQ=long, BK=short, **options
    )
    _soft_bwd_keys_kernel[(B * M * blocks,)](
        *inputs, dk, dv, *strides, N, M, BQ=short, BK=long, **options
    )
    return dalpha.sum((0, 2)).to(alpha.dtype)
