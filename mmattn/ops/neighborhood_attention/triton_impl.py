"""Launchers of the kernels of neighborhood attention, in triton_*.py.

The kernels take one launch forward and two backward. Each tile writes its share of the
gradient of the table of biases, and the shares are added in a fixed order.
"""

import torch
from torch import Tensor

from ..triton import launch
from .reference import window_width

MAX_WINDOW = 15

# By the padded head width and side of the table: height and width of a tile and of a
# block of the other side, warps. Chosen from the compiler's reports, so that nothing
# spills. Heights of tile and block multiply to 16 or more, as products of Triton 3.6
# require for the gradient of the table.
TILES = launch.tables_by_dtype(
    'neighborhood_attention.TILES',
    {
        torch.float32: {
            (width, cells): (8, 128 // cells, 2, 8, 4)
            for width in (16, 32)
            for cells in (16, 32)
        },
        torch.float16: {
            (width, cells): (8, 8, 2, 8 if width == 64 else 16, 4)
            for width in (16, 32, 64)
            for cells in (16, 32)
        },
        torch.bfloat16: {
            (width, cells): (8, 8, 2 if width == 64 else 4, 16, 4)
            for width in (16, 32, 64)
            for cells in (16, 32)
        },
    },
)


def unsupported(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    widest = max(width for width, _ in TILES.get(q.dtype, [(0, 0)]))
    if reason := launch.reason(q, widest) or launch.offsets_reason(q, k, v):
        return reason
    if (K := window_width(rpb)) > MAX_WINDOW:
        return f'supports windows of at most {MAX_WINDOW} pixels a side, got {K}'
    return None


def forward(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and each row's log-sum-exp (B, M, H * W) in fp32."""
    from .triton_fwd import _fwd_kernel

    B, H, W, M, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = launch.empty(q, B, M, H * W)
    if B:
        q, k, v = map(_tokens, (q, k, v))
        tiles, options = _options(q, H, W, window_width(rpb))
        with torch.cuda.device_of(q):
            _fwd_kernel[(B * M * tiles,)](
                q, k, v, rpb.contiguous(), out, lse, *launch.strides(q, k, v), **options
            )
    return out, lse


def backward(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, rpb: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v and rpb."""
    from .triton_bwd import _bwd_keys_kernel, _bwd_queries_kernel

    B, H, W, M, _ = q.shape
    if not B:
        return launch.zeros(q, k, v, rpb)
    dq, dk, dv = (
        torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)
    )
    grad, q, k, v = map(_tokens, (grad, q, k, v))
    tiles, options = _options(q, H, W, window_width(rpb))
    delta = launch.empty(q, B, M, H * W)
    drpb = launch.empty(q, B, tiles, *rpb.shape)
    table, strides = rpb.contiguous(), launch.strides(q, k, v, grad)
    with torch.cuda.device_of(q):
        _bwd_queries_kernel[(B * M * tiles,)](
            q, k, v, grad, out, table, lse, delta, dq, drpb, *strides,
            CELLS=launch.power_of_two(rpb.shape[1], 16), **options,
        )  # fmt: skip
        _bwd_keys_kernel[(B * M * tiles,)](
            q, k, v, grad, table, lse, delta, dk, dv, *strides, **options
        )
    return dq, dk, dv, drpb.sum((0, 1)).to(rpb.dtype)


def _tokens(x: Tensor) -> Tensor:
    """Return (B, H * W, M, D) with a contiguous last dimension."""
    return launch.unit_stride(x.flatten(1, 2))


def _options(q: Tensor, H: int, W: int, K: int) -> tuple[int, dict]:
    """Return the number of tiles of a head, and the options of a launch over them."""
    M, D = q.shape[2:]
    DP, CELLS = launch.power_of_two(D, 16), launch.power_of_two(2 * K - 1, 16)
    TH, TW, BH, BW, num_warps = TILES[q.dtype][DP, CELLS]
    return launch.cdiv(H, TH) * launch.cdiv(W, TW), dict(
        M=M, H=H, W=W, scale=D**-0.5, K=K, D=D, DP=DP, TH=TH, TW=TW, BH=BH, BW=BW,
        PRECISION=launch.precision(q), NATIVE=launch.is_native(q),
        num_warps=num_warps, num_stages=1, **launch.COMPILER,
    )  # fmt: skip
