"""Where deformable attention samples its keys, and the attention that they receive.

What the figures of "Vision Transformer with Deformable Attention"
(https://arxiv.org/abs/2201.00520) and of "DAT++" (https://arxiv.org/abs/2309.01430)
show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.ops.deformable_attention import query_positions

from .one_image import check_one_image, module_kinds, run_with_hooks

if TYPE_CHECKING:
    from mmattn.models.layers import DeformableAttention

# Of the scores of some queries, for all heads and keys: 64 MiB in float32.
MAX_SCORES = 1 << 24


@dataclass(frozen=True)
class SamplingPoints:
    """The keys of one layer; places are (y, x) in the image, in pixels.

    Attributes:
        layer: name of the module.
        references: the uniform grid that the offsets start from, shape (K, 2).
        points: where each of the G groups samples, shape (G, K, 2). Outside of the
            image's pixels it samples zeros.
        weights: shape (G, K), the attention to each point in the mean over the group's
            heads, and over all queries unless there is one; sums up to 1.
        query: the middle of the cell that asks, or None for all.
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
    """Runs a backbone and returns the points of each `DeformableAttention`, in order.

    Args:
        backbone: runs in the mode it is in, and without `torch.compile`.
        image: shape (1, 3, H, W).
        query: a place (y, x) in the image, in pixels; (0.5, 0.5) is the middle of the
            first one. A layer's query is the cell of its map that the place lies in.

    Raises:
        ValueError: not one image, a query outside it, or no such layer.
    """
    check_one_image(image)
    size = tuple(image.shape[2:])
    if query is not None and not all(
        0 <= place < side for place, side in zip(query, size, strict=True)
    ):
        raise ValueError('query {} is outside of the {}x{} image'.format(query, *size))
    from mmattn.models.layers import DeformableAttention

    names = {
        module: name
        for name, module in backbone.named_modules()
        if isinstance(module, DeformableAttention)
    }
    if not names:
        raise ValueError(
            f'{type(backbone).__name__} has no DeformableAttention, as DAT and DAT++ '
            f'have; its modules are {module_kinds(backbone)}'
        )
    found = []

    def read(layer, args, out):
        found.append(_points(names[layer], layer, args[0], size, query))

    run_with_hooks(backbone, image, dict.fromkeys(names, read))
    return found


def _points(
    name: str,
    layer: 'DeformableAttention',
    x: Tensor,
    size: tuple[int, int],
    query: tuple[float, float] | None,
) -> SamplingPoints:
    """Of a layer that was given the map `x` (1, H, W, C) of an image of `size`."""
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
    sides = layer.offsets(q).shape[1:3]  # of the keys' grid
    references = torch.cartesian_prod(
        *(layer.reference_points(side, positions) for side in sides)
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
    """Normalized (x, y) on a map, as in `DeformableAttention`, to (y, x) in pixels."""
    grid, size = (positions.new_tensor(sides) for sides in (grid, image_size))
    cells = (positions.flip(-1) + 1) / 2 * (grid - 1) + 0.5
    return cells * size / grid


def mean_attention(
    layer: 'DeformableAttention', x: Tensor, positions: Tensor, rows: Tensor
) -> Tensor:
    """What the queries `rows` of the map `x` give each key, shape (G, K).

    By the definition; scores are in memory for some queries at a time.
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
    tables = layer.rpe_table.to(positions.dtype).unflatten(0, (G, M // G))
    total = positions.new_zeros(M, len(k))
    for some in rows.split(max(1, MAX_SCORES // total.numel())):
        displacement = (queries[some, None] - positions[0, :, None]) / 2
        bias = F.grid_sample(tables, displacement, align_corners=True).flatten(0, 1)
        scores = torch.einsum('nmd,kmd->mnk', q[some], k) * q.shape[2] ** -0.5
        total += (scores + bias).softmax(dim=-1).sum(dim=1)
    return total.unflatten(0, (G, M // G)).mean(dim=1) / len(rows)
