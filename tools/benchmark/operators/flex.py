"""FlexAttention as a peer: compiled, with masks and biases as functions of a pair.

PyTorch has no backward for it on a CPU, so its cases have only the forward there. The
positions of the tokens are computed from their indices, as FlexAttention's own examples
do. It reads no score outside a block mask, and all others.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .case import PASSES

METHOD = 'flex_attention'


def options(device: str) -> dict:
    """Return what its cases have in common."""
    return dict(compiled=True, passes=PASSES[:1] if device == 'cpu' else PASSES)


@functools.cache
def compiled() -> Callable:
    return torch.compile(flex_attention, dynamic=False)


def attend(q: Tensor, k: Tensor, v: Tensor, **kwargs) -> Tensor:
    """Attend with q, k, v and the output of shape (B, N, M, D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    if not torch.is_grad_enabled():
        q, k, v = q.detach(), k.detach(), v.detach()  # even a view may require one
    return compiled()(q, k, v, **kwargs).transpose(1, 2)


def masked(grid: tuple[int, int], kernel_size: int) -> Callable[..., Tensor]:
    """Return masked attention: scores outside the mask are multiplied by 0 or alpha."""
    width, reach = grid[1], kernel_size // 2

    def call(q, k, v, alpha=None):
        def score_mod(score, b, h, i, j):
            rows, columns = i // width - j // width, i % width - j % width
            near = (rows.abs() <= reach) & (columns.abs() <= reach)
            return torch.where(near, score, 0 if alpha is None else alpha[h] * score)

        return attend(q, k, v, score_mod=score_mod)

    return call


def neighborhood(
    grid: tuple[int, int], kernel_size: int, device: str
) -> Callable[..., Tensor]:
    """Return neighborhood attention under a block mask, which is made once."""
    (height, width), K = grid, kernel_size

    def seen(i, j, side):
        start = (i - K // 2).clamp(0, side - K)
        return (start <= j) & (j < start + K)

    def mask_mod(b, h, i, j):
        rows = seen(i // width, j // width, height)
        return rows & seen(i % width, j % width, width)

    tokens = height * width
    block_mask = create_block_mask(mask_mod, None, None, tokens, tokens, device)

    def call(q, k, v, rpb):
        def score_mod(score, b, h, i, j):
            rows, columns = j // width - i // width, j % width - i % width
            rows, columns = ((x + K - 1).clamp(0, 2 * K - 2) for x in (rows, columns))
            return score + rpb[h, rows, columns]

        flat = (x.flatten(1, 2) for x in (q, k, v))
        out = attend(*flat, score_mod=score_mod, block_mask=block_mask)
        return out.view(q.shape)

    return call


def deformable(grid: tuple[int, int]) -> Callable[..., Tensor]:
    """Return deformable attention v2: four numbers of the table for each pair."""
    height, width = grid

    def call(q, k, v, positions, table):
        group = table.shape[0] // positions.shape[1]
        rows, columns = table.shape[1:]
        table = F.pad(table, (1, 2, 1, 2))  # grid_sample reads 0 outside
        across, down = positions.unbind(-1)

        def corner(coordinate, size):
            """Return the corner before a coordinate in [-1, 1], and the distance."""
            place = ((coordinate + 1) / 2 * (size - 1) + 1).clamp(0, size + 1)
            before = place.floor()
            return before.to(torch.int64), place - before

        def score_mod(score, b, h, i, j):
            x = (2 * (i % width) + 1 - width) / max(width - 1, 1)
            y = (2 * (i // width) + 1 - height) / max(height - 1, 1)
            column, right = corner((x - across[b, h // group, j]) / 2, columns)
            row, below = corner((y - down[b, h // group, j]) / 2, rows)
            upper = table[h, row, column] * (1 - right)
            upper = upper + table[h, row, column + 1] * right
            lower = table[h, row + 1, column] * (1 - right)
            lower = lower + table[h, row + 1, column + 1] * right
            return score + upper * (1 - below) + lower * below

        return attend(q, k, v, score_mod=score_mod)

    return call
