"""Deformable attention, written with `grid_sample` as its sources define it.

All queries share the keys, with a continuous relative position bias: Xia et al.,
"Vision Transformer with Deformable Attention", https://arxiv.org/abs/2201.00520,
equations 6 to 9, and "DAT++", https://arxiv.org/abs/2309.01430.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.sampling import sample_maps


def query_positions(
    grid: Sequence[int],
    align_corners: bool,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the normalized (x, y) of a grid's pixels in row-major order, (H * W, 2).

    As in `grid_sample`, `align_corners` puts the centers of the outer pixels at -1 and
    1, and the only pixel of a side at 0. Without it their outer edges lie at -1 and 1.
    """
    y, x = (
        side_positions(side, align_corners, dtype=dtype, device=device) for side in grid
    )
    # Not `repeat_interleave`, which onnxscript writes wrongly for symbolic sides.
    y, x = torch.meshgrid(y, x, indexing='ij')
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def side_positions(
    side: int,
    align_corners: bool,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the normalized positions of a side's pixels, see `query_positions`."""
    # Not `max`, which torch.export replaces by the larger number of its example.
    steps = torch.sym_max(side - 1, 1) if align_corners else side
    return (2 * torch.arange(side, dtype=dtype, device=device) + 1 - side) / steps


def sampled_bias(table: Tensor, positions: Tensor, queries: Tensor) -> Tensor:
    """Return the bias of each query and each key, shape (B, M, N, K).

    `table` and `positions` are as in `mmattn.ops.deformable_attention`, and
    `queries` the positions of the queries, shape (N, 2).
    """
    B, G, K, _ = positions.shape
    M = table.shape[0]
    displacement = (queries[:, None] - positions[:, :, None]) / 2  # (B, G, N, K, 2)
    tables = table.unflatten(0, (G, M // G)).repeat(B, 1, 1, 1)
    bias = sample_maps(tables, displacement.flatten(0, 1), align_corners=True)
    return bias.unflatten(0, (B, G)).flatten(1, 2)


def deformable_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    *,
    grid: Sequence[int],
    align_corners: bool,
) -> Tensor:
    """Return `mmattn.ops.deformable_attention` of the same arguments."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    positions, table = positions.to(dtype), table.to(dtype)
    queries = query_positions(grid, align_corners, dtype=dtype, device=q.device)
    return attend(q, k, v, sampled_bias(table, positions, queries))


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Return the attention with a bias (B, M, N, K), in whose dtype it is computed."""
    storage = q.dtype
    q, k, v = (x.to(bias.dtype).transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    # OpenVINO may overwrite queries that it multiplies as they are, see docs/export.md.
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + bias
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).to(storage)
