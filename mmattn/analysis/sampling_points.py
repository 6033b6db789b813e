"""Read where deformable attention samples its keys, and how much attention they get.

The figures of "Vision Transformer with Deformable Attention"
(https://arxiv.org/abs/2201.00520) and of "DAT++" (https://arxiv.org/abs/2309.01430)
show these points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.ops.deformable_attention import query_positions

from .one_image import check_one_image, check_place, read_layers

if TYPE_CHECKING:
    from mmattn.models.layers import DeformableAttention

# Scores in memory at a time, for all heads and keys: 64 MiB in float32.
MAX_SCORES = 1 << 24


@dataclass(frozen=True)
class SamplingPoints:
    """The keys of one layer; places are (y, x) in the image, in pixels.

    Attributes:
        layer: name of the module.
        references: the uniform grid that the offsets start from, shape (K, 2).
        points: where each of the G groups samples, shape (G, K, 2). Points outside the
            image sample zeros.
        weights: shape (G, K), the attention to each point, averaged over the group's
            heads and, without a query, over all queries. Sums up to 1.
        query: the middle of the query's cell, or None for all queries.
    """

    layer: str
    references: Tensor
    points: Tensor
    weights: Tensor
    query: tuple[float, float] | None


@torch.no_grad()
def sampling_points(
    backbone: nn.Module, image: Tensor, query: tuple[float, float] | None = None
) -> list[SamplingPoints]:
    """Run a backbone and return the points of each `DeformableAttention`, in order.

    Args:
        backbone: runs in its current mode and without `torch.compile`.
        image: shape (1, 3, H, W).
        query: a place (y, x) in the image, in pixels; (0.5, 0.5) is the middle of the
            first one. A layer's query is the cell of its map that the place lies in.

    Raises:
        ValueError: there is not one image, the query is outside it, or the backbone has
            no such layer.
    """
    check_one_image(image)
    size = tuple(image.shape[2:])
    if query is not None:
        check_place('query', query, size)
    from mmattn.models.layers import DeformableAttention

    return read_layers(
        backbone,
        DeformableAttention,
        'DAT and DAT++',
        lambda: backbone(image),
        lambda name, layer, args: _points(name, layer, args[0], size, query),
    )


def _points(
    name: str,
    layer: 'DeformableAttention',
    x: Tensor,
    size: tuple[int, int],
    query: tuple[float, float] | None,
) -> SamplingPoints:
    """Return the points of a layer, given its map `x` (1, H, W, C) of an image."""
    grid = tuple(x.shape[1:3])
    rows = torch.arange(grid[0] * grid[1], device=x.device)
    if query is not None:
        pairs = [*zip(query, grid, size, strict=True)]
        row, column = (int(place * cells / side) for place, cells, side in pairs)
        rows = rows[row * grid[1] + column, None]
        query = tuple(
            (cell + 0.5) * side / cells
            for cell, (_, cells, side) in zip((row, column), pairs, strict=True)
        )
    q = layer.proj_q(x)
    positions = layer.positions(q)
    references = torch.cartesian_prod(
        *(layer.reference_points(side, positions) for side in layer.key_grid(grid))
    ).flip(-1)
    return SamplingPoints(
        name,
        in_image(references, grid, size),
        in_image(positions[0], grid, size),
        mean_attention(layer, x, positions, rows),
        query,
    )


def in_image(
    positions: Tensor, grid: Sequence[int], image_size: Sequence[int]
) -> Tensor:
    """Turn the normalized (x, y) of `DeformableAttention` into (y, x) in pixels."""
    grid, size = (positions.new_tensor(sides) for sides in (grid, image_size))
    cells = (positions.flip(-1) + 1) / 2 * (grid - 1) + 0.5
    return cells * size / grid


def mean_attention(
    layer: 'DeformableAttention', x: Tensor, positions: Tensor, rows: Tensor
) -> Tensor:
    """Return the attention of queries `rows` of the map `x` to each key, shape (G, K).

    This is the definition, with the scores of some queries in memory at a time.
    """
    from mmattn.models.layers.deformable_attention import sample_map

    grid, M, G = x.shape[1:3], layer.num_heads, layer.num_groups
    q, k = (
        tokens.reshape(-1, M, tokens.shape[-1] // M).to(positions.dtype)
        for tokens in (layer.proj_q(x), layer.proj_k(sample_map(x, positions)))
    )  # (N, M, D) and (K, M, D)
    queries = query_positions(
        grid, layer.version == 2, dtype=positions.dtype, device=positions.device
    )
    fixed = layer.bias(grid, positions)
    tables = positions.new_zeros(G, M // G, 1, 1)
    if layer.position == 'table':
        tables = layer.rpe_table.to(positions.dtype).unflatten(0, (G, M // G))
    total = positions.new_zeros(M, len(k))
    for some in rows.split(max(1, MAX_SCORES // total.numel())):
        displacement = (queries[some, None] - positions[0, :, None]) / 2
        bias = F.grid_sample(tables, displacement, align_corners=True).flatten(0, 1)
        if fixed is not None:
            bias = fixed.reshape(M, *fixed.shape[-2:])[:, some].to(positions.dtype)
        scores = torch.einsum('nmd,kmd->mnk', q[some], k) * q.shape[2] ** -0.5
        total += (scores + bias).softmax(dim=-1).sum(dim=1)
    return total.unflatten(0, (G, M // G)).mean(dim=1) / len(rows)
