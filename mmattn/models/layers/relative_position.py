"""Relative position bias, Swin's or of the whole map, for masked and global heads."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn.ops import masked_attention

from .masked.attention import MaskedAttention
from .resize import fit_on_load, resize_grid

# Of all global heads' bias, 64 MiB in float32; beyond it they go one by one.
MAX_BIAS_ELEMENTS = 1 << 24


class RelativeMaskedAttention(MaskedAttention):
    """`MaskedAttention` without special tokens, with a learned bias of offsets.

    The table is that of Swin Transformer (https://arxiv.org/abs/2103.14030): a row for
    each offset from key to query, a column for each head. Masked heads get the bias
    inside their mask, so they read its central R x R alone.

    On large maps global heads are computed one by one, each again in the backward: the
    bias and the scores of one head are then all that is held of any N x N.

    Args:
        embed_dims, num_heads, kernel_size, mask_fill, backend: see `MaskedAttention`.
        masked_heads: how many of the lowest heads are masked.
        table_grid: the map (H, W) that the table has all the offsets of. Swin's window
            is (7, 7).
        clip: whether larger offsets share the table's border; otherwise other maps get
            the table resized, see `resize_grid`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        masked_heads: int,
        *,
        table_grid: Sequence[int] = (7, 7),
        clip: bool = True,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
        backend: str | None = None,
    ):
        super().__init__(
            embed_dims,
            num_heads,
            masked_heads,
            kernel_size=kernel_size,
            mask_fill=mask_fill,
            backend=backend,
        )
        self.table_shape = tuple(2 * side - 1 for side in table_grid)
        self.clip = clip
        rows, columns = self.table_shape
        self.relative_position_bias_table = nn.Parameter(
            torch.empty(rows * columns, num_heads)
        )
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        if not clip:
            self.register_load_state_dict_pre_hook(
                fit_on_load('relative_position_bias_table', self.table_shape, dim=0)
            )

    def table(self, grid: Sequence[int]) -> Tensor:
        """The table for a map: shape (M, rows, columns), offset 0 in the middle."""
        table = self.relative_position_bias_table.t().unflatten(1, self.table_shape)
        return table if self.clip else resize_grid(table, [2 * s - 1 for s in grid])

    def biases(self, grid: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
        table = self.table(grid)
        num_masked = len(self.masked_heads)
        bias = global_bias = None
        if num_masked > 0:
            bias = central_bias(table[:num_masked], self.kernel_size)
        if num_masked < self.num_heads:
            global_bias = spread_table(table[num_masked:], grid)
        return bias, global_bias

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Sequence[int]) -> Tensor:
        N, M = q.shape[1:3]
        num_masked = len(self.masked_heads)
        if (M - num_masked) * N * N <= MAX_BIAS_ELEMENTS:
            return super().attend(q, k, v, grid)
        table = self.table(grid)
        outs = []
        if num_masked:
            outs.append(
                masked_attention(
                    *(x[:, :, :num_masked] for x in (q, k, v)),
                    grid,
                    kernel_size=self.kernel_size,
                    bias=central_bias(table[:num_masked], self.kernel_size),
                    mask_fill=self.mask_fill,
                    backend=self.backend,
                )
            )
        for head in range(num_masked, M):
            heads = slice(head, head + 1)
            views = [x[:, :, heads] for x in (q, k, v)]
            outs.append(
                checkpoint(
                    self.attend_globally,
                    *views,
                    table[heads],
                    grid,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            )
        return torch.cat(outs, dim=2)

    def attend_globally(self, q, k, v, table, grid):
        return masked_attention(
            q,
            k,
            v,
            grid,
            masked_heads=0,
            global_bias=spread_table(table, grid),
            backend=self.backend,
        )


def central_bias(table: Tensor, kernel_size: int) -> Tensor:
    """Table (M, rows, columns) of query minus key to (M, R, R) of key minus query."""
    radius = kernel_size // 2
    offsets = torch.arange(radius, -radius - 1, -1, device=table.device)
    for dim in (1, 2):
        middle = table.shape[dim] // 2
        table = table.index_select(dim, offsets.clamp(-middle, middle) + middle)
    return table


def spread_table(table: Tensor, grid: Sequence[int]) -> Tensor:
    """Table (M, rows, columns) to the bias of each query and key, (M, N, N).

    It looks up whole lines of keys, as single numbers take thrice as long, and more in
    the backward.
    """
    H, W = grid
    M, count, _ = table.shape
    rows, columns = (
        clipped_offsets(side, size // 2, table.device)
        for side, size in zip(grid, table.shape[1:], strict=True)
    )
    lines = table.index_select(2, columns.flatten()).view(M, count, W, W)
    lines = lines.transpose(1, 2).reshape(M, W * count, W)  # x_q and row, x_k
    x_q = torch.arange(W, device=table.device)
    index = x_q[:, None] * count + rows[:, None]  # (y_q, x_q, y_k)
    return lines.index_select(1, index.flatten()).view(M, H * W, H * W)


def clipped_offsets(side: int, middle: int, device: torch.device) -> Tensor:
    """Which row of a table a query and a key read along one axis, (side, side)."""
    position = torch.arange(side, device=device)
    return (position[:, None] - position).clamp(-middle, middle) + middle
