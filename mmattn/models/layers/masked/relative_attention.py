"""Masked attention with a relative position bias, Swin's or of the whole map."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn.ops import deformable_attention, masked_attention
from mmattn.ops.common.biased_attention import biased_attention
from mmattn.ops.common.derivatives import needs_reference
from mmattn.ops.common.operator import OPERATORS
from mmattn.ops.common.precision import cast_under_autocast, without_autocast
from mmattn.ops.deformable_attention import query_positions

from ..offset_tables import central_bias, middle_of, spread_table
from ..resize import fit_on_load, resize_grid
from .attention import MaskedAttention

# The bias of all global heads together, 64 MiB in float32; beyond it, the queries of a
# head are computed by some rows of the map at a time, so that biases stay in cache.
MAX_BIAS_ELEMENTS = 1 << 24
QUERY_ROWS = 4


class RelativeMaskedAttention(MaskedAttention):
    """`MaskedAttention` without special tokens, with a learned bias of offsets.

    It is the table of Swin Transformer (https://arxiv.org/abs/2103.14030): a row for
    each offset from key to query, a column for each head. Masked heads get the bias
    inside their mask, so they read only the central R x R entries.

    On large maps N x N numbers are never held. Global heads are computed there by the
    C++ backend of `ops.deformable_attention`, whose keys may also lie at the pixels,
    and without it by rows of queries, and again in the backward.

    Args:
        embed_dims, num_heads, kernel_size, mask_fill, backend: see `MaskedAttention`.
        masked_heads: how many of the lowest heads are masked.
        table_grid: the map (H, W) whose offsets the table covers. Swin's window is
            (7, 7).
        clip: whether larger offsets read the table's border. Otherwise the table is
            resized for other maps, see `resize_grid`.
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
            fit_on_load(self, 'relative_position_bias_table', self.table_shape, dim=0)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {'relative_position_bias_table'}

    def table(self, grid: Sequence[int]) -> Tensor:
        """Return a map's table (M, rows, columns), with offset 0 in the middle."""
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
        is_small = (M - num_masked) * N * N <= MAX_BIAS_ELEMENTS
        table = self.relative_position_bias_table
        if is_small or self.backend == 'reference' or needs_reference(q, k, v, table):
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
        if num_masked < M:
            views = [x[:, :, num_masked:] for x in (q, k, v)]
            outs.append(self.attend_globally(*views, table[num_masked:], grid))
        return torch.cat(outs, dim=2)

    def attend_globally(self, q, k, v, table, grid):
        """Attend with global heads of a large map."""
        H, W = grid
        pixels = query_positions(grid, True, device=q.device).expand(len(q), 1, -1, 2)
        tensors = q, k, v, pixels, middle_of(table, (H - 1, W - 1))
        operator = OPERATORS['deformable_attention']
        if operator.choose(*tensors, requested=self.backend) == 'cpp':
            return deformable_attention(q, k, v, grid, *tensors[3:], backend='cpp')
        return self.attend_by_rows(q, k, v, table, grid)

    def attend_by_rows(self, q, k, v, table, grid):
        """Attend from rows of one head's queries at a time."""
        q, k, v = (x.transpose(1, 2) for x in cast_under_autocast(q, k, v))
        H, W = grid
        heads = []
        for m in range(q.shape[1]):
            head = slice(m, m + 1)
            rows = []
            for first in range(0, H, QUERY_ROWS):
                part = slice(first, first + QUERY_ROWS)
                inputs = q[:, head, first * W : part.stop * W], k[:, head], v[:, head]
                rows.append(
                    checkpoint(
                        attend_from_rows,
                        *inputs,
                        table[head],
                        grid,
                        part,
                        use_reentrant=False,
                        preserve_rng_state=False,
                    )
                )
            heads.append(torch.cat(rows, 2))
        return torch.cat(heads, 1).transpose(1, 2)


def attend_from_rows(q, k, v, table, grid, rows):
    """Attend from some rows of a map to all of it; tensors are (B, M, N, D)."""
    bias = spread_table(table, grid, rows)[None].to(q.dtype)
    with without_autocast(q):
        return biased_attention(q, k, v, bias)
