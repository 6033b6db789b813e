"""Structure-aware attention in Triton: launchers of the kernels in triton_*.py.

Grids of one or two short sides are transformed by the kernels, others by cuFFT with
kernels around it. Triton is imported by the first call that needs it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..triton import launch
from . import triton_short
from .reference import EPS
from .spectrum import column_weights, irfft_grid, rfft_grid

MAX_HEAD_WIDTH = 128
# Beyond these sides the kernels with cuFFT count less (docs/benchmarks/kernels_sm*.csv).
MAX_SIDE, MAX_SIDE_BACKWARD = 64, 32

# By rows and columns of a half-spectrum's tile. Chosen from the compiler's reports, so
# that nothing spills.
CONTRACT_TILES = launch.TileTable('structure_aware_attention.CONTRACT_TILES', {  # blocks, rows of output, warps
    (16, 16): (4, 16, 4), (16, 32): (2, 16, 4), (16, 64): (1, 16, 4),
    (32, 16): (2, 32, 4), (32, 32): (2, 32, 4), (32, 64): (1, 32, 8),
    (64, 16): (1, 32, 4), (64, 32): (1, 32, 8), (64, 64): (1, 32, 8),
})  # fmt: skip
FORWARD_TILES = launch.TileTable('structure_aware_attention.FORWARD_TILES', {  # of forward transforms: blocks, columns, warps
    (16, 16): (4, 16, 4), (16, 32): (2, 32, 4), (16, 64): (1, 32, 4),
    (32, 16): (2, 16, 4), (32, 32): (1, 32, 4), (32, 64): (1, 32, 8),
    (64, 16): (1, 16, 4), (64, 32): (1, 32, 8), (64, 64): (1, 32, 8),
})  # fmt: skip
READ_ROWS = 16  # rows read at a time
MAX_COLUMNS = 64
NUM_STAGES = 2
WARPS_4 = dict(num_warps=4, enable_fp_fusion=True)
TARGET_PROGRAMS = 528  # sums over heads are split until there are this many
TILE, BLOCK = 2048, 256  # numbers of a tile of planes and of a block of spectra


def unsupported(
    q: Tensor, k: Tensor, v: Tensor, w_a: Tensor, w_b: Tensor, bias: Tensor
) -> str | None:
    """Return why this backend does not support a call, or None."""
    return launch.reason(q, MAX_HEAD_WIDTH)


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in fp32."""
    B, N, M, D = q.shape
    patterns = launch.empty(q, B, M, bias.shape[1], N)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if B:
        w_a, w_b, bias = (x.contiguous() for x in (w_a, w_b, bias))
        with torch.cuda.device_of(q):
            planes, _ = _planes(q, k, v)
            if parts := triton_short.parts_of(grid, *bias.shape, q):
                args = planes, w_a, w_b, bias, patterns, grid
                y = triton_short.forward(*args, parts)
            elif _is_small(grid, MAX_SIDE):
                g = _Grid.of(grid, q)
                y = _forward(planes, w_a, w_b, bias, patterns, g)
            else:
                y = _forward_large(planes, w_a, w_b, bias, patterns, grid)
            out.copy_(y.permute(0, 3, 1, 2))
    return out, patterns


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Return the gradients of q, k, v, the parts of w_a and w_b, and the bias."""
    B, _, M, D = q.shape
    if not B:
        return launch.zeros(q, k, v, w_a, w_b, bias)
    weights = column_weights(grid, w_a)
    w_a, w_b, bias = (x.contiguous() for x in (w_a, w_b, bias))
    with torch.cuda.device_of(q):
        planes, scale = _planes(q, k, v)
        dy = torch.empty(planes.shape[1:], dtype=torch.float32, device=q.device)
        dy.copy_(grad.permute(0, 2, 3, 1))
        args = planes, dy, w_a, w_b, bias, patterns
        if parts := triton_short.parts_of(grid, *bias.shape, q):
            grads, dw_a, dw_b, dbias = triton_short.backward(*args, grid, parts)
        else:
            if _is_small(grid, MAX_SIDE_BACKWARD):
                g = _Grid.of(grid, q)
                grads, dw_a, dw_b = _backward(*args, g)
            else:
                grads, dw_a, dw_b = _backward_large(*args, grid)
            dbias = _bias_gradient(patterns, dy)
        dw_a, dw_b = (dw * weights[:, None] for dw in (dw_a, dw_b))
        return *_token_gradients(grads, planes, scale, q), dw_a, dw_b, dbias


def _is_small(grid, max_side: int) -> bool:
    return len(grid) <= 2 and max(grid) <= max_side


def _real(w: Tensor) -> Tensor:
    """Return real and imaginary parts along a new last axis."""
    return torch.view_as_real(w.resolve_conj().contiguous())


def _token_blocks(planes: Tensor) -> tuple[int, dict]:
    """Return blocks of tokens, and constants of kernels over all channels of each."""
    D, N = planes.shape[-2:]
    DP = launch.power_of_two(D, 16)
    BN = min(TILE // DP, launch.power_of_two(N, 16))
    return launch.cdiv(N, BN), dict(D=D, DP=DP, BN=BN, **WARPS_4)


def _planes(q, k, v) -> tuple[Tensor, Tensor]:
    """Return unit q, unit k and v as (3, B, M, D, N), and the scales (2, B, M, N)."""
    from .triton_fwd import _planes_kernel

    B, N, M, D = q.shape
    planes, scale = launch.empty(q, 3, B, M, D, N), launch.empty(q, 2, B, M, N)
    blocks, constants = _token_blocks(planes)
    strides = [stride for x in (q, k, v) for stride in x.stride()]
    _planes_kernel[(B * M * blocks,)](
        q, k, v, planes, scale, *strides, N, M, B * M, blocks, EPS, **constants
    )
    return planes, scale


def _token_gradients(grads, planes, scale, q) -> list[Tensor]:
    """Return the gradients of q, k and v, given their planes' gradients."""
    from .triton_bwd import _bwd_tokens_kernel

    B, N, M, _ = q.shape
    tensors = [torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)]
    blocks, constants = _token_blocks(planes)
    _bwd_tokens_kernel[(B * M * blocks,)](
        grads, planes, scale, *tensors, N, M, B * M, blocks, **constants
    )
    return tensors


def _bias_gradient(patterns: Tensor, dy: Tensor) -> Tensor:
    from .triton_bwd import _bwd_bias_kernel

    B, M, D, N = dy.shape
    K, BK, DP = patterns.shape[2], 16, launch.power_of_two(D, 16)
    blocks = launch.cdiv(K, BK)
    splits, heads = launch.split(B * M, blocks, TARGET_PROGRAMS)
    out = launch.empty(dy, splits, D, K)
    _bwd_bias_kernel[(splits * blocks,)](
        patterns, dy, out, D, K, N, B * M, blocks, heads,
        BK=BK, DP=DP, BN=32, num_warps=8 if DP > 64 else 4, num_stages=NUM_STAGES,
        maxnreg=255, enable_fp_fusion=True,
    )  # fmt: skip
    return out.sum(0)


class _Grid(NamedTuple):
    """Hold what transforms of one grid are launched with; see triton_dft."""

    H: int
    W: int
    columns: int  # columns of a half-spectrum, real and imaginary parts in turn
    HP: int
    WP: int
    CP: int
    CW: int
    UH: int
    UW: int
    precision: str
    matrices: Tensor

    @classmethod
    def of(cls, grid: tuple[int, ...], q: Tensor) -> '_Grid':
        """Return the sizes for a grid, and its matrices on the device of q.

        No cache keeps the matrices, since a CUDA graph reuses what its first call made.
        """
        from .triton_dft import _dft_kernel

        H, W = grid if len(grid) == 2 else (1, *grid)
        columns = 2 * (W // 2 + 1)
        HB, CB = launch.power_of_two(H), launch.power_of_two(columns)
        HP, CP = max(16, HB), min(max(16, CB), MAX_COLUMNS)
        # Rows are as long as tiles of columns, so that few widths compile anew.
        CW, UH, UW = launch.cdiv(columns, CP) * CP, HP // HB, max(1, 16 // CB)
        size = 2 * HP * HP + 2 * CP * CW
        matrices = launch.empty(q, 2 * size)
        _dft_kernel[(launch.cdiv(size, BLOCK),)](
            matrices, size, H, W, HP, CP, CW, UH, UW, BLOCK=BLOCK, **WARPS_4
        )
        sizes = H, W, columns, HP, CP, CP, CW, UH, UW
        return cls(*sizes, launch.precision(q), matrices)


def _transform_constants(g: _Grid, CP: int, T: int, num_warps: int) -> dict:
    """Return constants and options; maxnreg avoids spills for occupancy."""
    return dict(
        T=T, HP=g.HP, WP=g.WP, CP=CP, UH=g.UH, UW=g.UW, BH=READ_ROWS,
        PRECISION=g.precision, num_warps=num_warps, maxnreg=255, enable_fp_fusion=True,
        num_stages=1 if g.precision == 'tf32x3' else NUM_STAGES,  # it would spill
    )  # fmt: skip


def _items(g: _Grid, blocks_of_tile: int, num_items: int) -> tuple[int, int]:
    """Return blocks of a tile, at most as many as needed, and tiles for all items."""
    T = min(blocks_of_tile, launch.power_of_two(launch.cdiv(num_items, g.UH * g.UW)))
    return T, launch.cdiv(num_items, T * g.UH * g.UW)


def _spectra(planes: Tensor, g: _Grid) -> Tensor:
    """Return half-spectra (..., D, H, W // 2 + 1, 2) of planes (..., D, N)."""
    from .triton_fwd import _spectrum_kernel

    D = planes.shape[-2]
    T, CP, num_warps = FORWARD_TILES[g.HP, g.CP]
    T, blocks = _items(g, T, D)
    chunks = launch.cdiv(g.columns, CP)
    out = launch.empty(planes, *planes.shape[:-1], g.H, g.columns // 2, 2)
    outer = planes[..., 0, 0].numel()
    _spectrum_kernel[(outer * blocks * chunks,)](
        planes, g.matrices, out, D, g.H, g.W, blocks, chunks, g.CW,
        **_transform_constants(g, CP, T, num_warps),
    )  # fmt: skip
    return out


def _contract(g: _Grid, x, w, factors, bias, out, K: int, over_channels: bool = False):
    """Write the sum of factors * (x * w + bias) over channels or patterns to `out`."""
    from .triton_fwd import _contract_kernel

    D = x.shape[2]
    T, RP, num_warps = CONTRACT_TILES[g.HP, g.CP]
    T, blocks = _items(g, T, out.shape[2])
    heads = out.shape[0] * out.shape[1]
    _contract_kernel[(heads * blocks * (g.HP // RP),)](
        x, w, factors, bias, g.matrices, out,
        D, K, g.H, g.W, blocks, g.CW, PATTERNS=over_channels, RP=RP, NC=g.CW // g.CP,
        **_transform_constants(g, g.CP, T, num_warps),
    )  # fmt: skip


def _correlate(
    g: _Grid, x, patterns, channels, kernels: bool = False, shared: bool = False
) -> Tensor:
    """Return sums of conj(x) F(patterns channels), gradients of planes or kernels."""
    from .triton_bwd import _bwd_correlate_kernel

    B, M, K, _ = patterns.shape
    D, heads = channels.shape[2], B * M
    T, CP, num_warps = FORWARD_TILES[g.HP, g.CP]
    T, blocks = _items(g, T, K if kernels else D)
    chunks = launch.cdiv(g.columns, CP)
    if kernels:
        splits, terms = launch.split(heads, D * blocks * chunks, TARGET_PROGRAMS)
        out = launch.empty(x, splits, D, K, g.H, g.columns // 2, 2)
    else:
        splits, terms = 1, K
        out = launch.empty(x, B, M, D, g.H, g.columns // 2, 2)
    outer = splits * D if kernels else heads
    _bwd_correlate_kernel[(outer * blocks * chunks,)](
        x, patterns, channels, g.matrices, out,
        D, K, heads, g.H, g.W, blocks, chunks, terms, g.CW,
        KERNELS=kernels, SHARED=shared, **_transform_constants(g, CP, T, num_warps),
    )  # fmt: skip
    return out


def _forward(planes, w_a, w_b, bias, patterns, g: _Grid) -> Tensor:
    """Write the patterns; return planes (B, M, D, N) of the output."""
    K = bias.shape[1]
    k_hat, v_hat = _spectra(planes[1:], g)
    _contract(g, k_hat, w_a, planes[0], None, patterns, K, over_channels=True)
    y = torch.empty_like(planes[0])
    _contract(g, v_hat, w_b, patterns, bias, y, K)
    return y


def _backward(planes, dy, w_a, w_b, bias, patterns, g: _Grid):
    """Return gradients (3, B, M, D, N) of planes, and spectra of kernels' gradients."""
    K = bias.shape[1]
    k_hat, v_hat = _spectra(planes[1:], g)
    dpatterns, grads = torch.empty_like(patterns), torch.empty_like(planes)
    _contract(g, v_hat, w_b, dy, bias, dpatterns, K, over_channels=True)
    _contract(g, k_hat, w_a, dpatterns, None, grads[0], K)
    dk_hat = _correlate(g, w_a, dpatterns, planes[0])
    _contract(g, dk_hat, None, None, None, grads[1], 1)
    dv_hat = _correlate(g, w_b, patterns, dy, shared=True)
    _contract(g, dv_hat, None, None, None, grads[2], 1)
    dw_a = _correlate(g, k_hat, dpatterns, planes[0], kernels=True).sum(0)
    dw_b = _correlate(g, v_hat, patterns, dy, kernels=True).sum((0, 1))
    return grads, dw_a.view(w_a.shape), dw_b.view(w_b.shape)


def _forward_large(planes, w_a, w_b, bias, patterns, grid) -> Tensor:
    """Compute `_forward`, one pattern after the other."""
    from .triton_large import _maps_kernel

    spectra = _real(rfft_grid(planes[1:].unflatten(-1, grid), grid))
    y = torch.empty_like(planes[0])
    heads, (blocks, constants) = y.shape[0] * y.shape[1], _token_blocks(planes)
    for i in range(bias.shape[1]):
        maps = _pattern_maps(spectra, w_a, w_b, i, grid)
        _maps_kernel[(heads * blocks,)](
            maps, planes, bias, patterns, y,
            i, bias.shape[1], planes.shape[-1], heads, blocks, **constants,
        )  # fmt: skip
    return y


def _backward_large(planes, dy, w_a, w_b, bias, patterns, grid):
    """Compute `_backward`, one pattern after the other."""
    from .triton_large import _bwd_maps_kernel, _bwd_spectra_kernel

    D, K = bias.shape
    heads, (blocks, constants) = dy.shape[0] * dy.shape[1], _token_blocks(planes)
    spectra = _real(rfft_grid(planes[1:].unflatten(-1, grid), grid))
    dspectra, grads = torch.empty_like(spectra), torch.empty_like(planes)
    dw = launch.empty(dy, 2, *w_a.shape)
    size = w_b[0].numel() // 2
    spectra_blocks = launch.cdiv(size, BLOCK)
    for i in range(K):
        maps = _pattern_maps(spectra, w_a, w_b, i, grid)
        _bwd_maps_kernel[(heads * blocks,)](
            maps, planes, dy, bias, patterns, grads,
            i, K, planes.shape[-1], heads, blocks, **constants,
        )  # fmt: skip
        _bwd_spectra_kernel[(2 * D * spectra_blocks,)](
            _real(rfft_grid(maps, grid)), spectra, w_a, w_b, dspectra, dw,
            i, D, K, heads, size, spectra_blocks, BLOCK=BLOCK, **WARPS_4,
        )  # fmt: skip
    grads[1:] = irfft_grid(torch.view_as_complex(dspectra), grid).flatten(4)
    return grads, dw[0], dw[1].sum(0)


def _pattern_maps(spectra, w_a, w_b, pattern: int, grid) -> Tensor:
    """Return k * w_a and v * w_b of one pattern, (2, B, M, D, *grid)."""
    from .triton_large import _product_kernel

    D, K = w_a.shape[:2]
    heads, size = spectra.shape[1] * spectra.shape[2], w_b[0].numel() // 2
    blocks = launch.cdiv(size, BLOCK)
    products = torch.empty_like(spectra)
    _product_kernel[(2 * heads * D * blocks,)](
        spectra, w_a, w_b, products, pattern, D, K, heads, size, blocks,
        BLOCK=BLOCK, **WARPS_4,
    )  # fmt: skip
    return irfft_grid(torch.view_as_complex(products), grid).contiguous()
