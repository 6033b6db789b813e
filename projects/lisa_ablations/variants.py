"""Mixers of the ablations of LiSA, on a channels-last grid.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289, Table 3. The places of
biases and the sharing of tables by the heads are inferred from the table's parameters.
All but 'local' take time quadratic in the number of tokens.

Tables of relative positions are made for a grid. Tables of two sides are resized for
others (bicubic), at run time and on load.
"""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import PointwiseLinear, fit_on_load, resize_grid
from mmattn.models.layers.checks import check_heads
from mmattn.ops.common.exporting import copied

from .operators import (
    block_toeplitz,
    local_structure_aware_attention,
    pattern_attention,
    relative_attention,
)


class Mixer(nn.Module):
    """Projections around `mix`, with tables of relative positions."""

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        *,
        qkv_bias: bool = False,
        proj_bias: bool = False,
    ):
        super().__init__()
        check_heads(embed_dims, num_heads)
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.norm = nn.Identity()
        self.proj = PointwiseLinear(embed_dims, embed_dims, bias=proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, *grid, C) in and out."""
        B, *grid, C = x.shape
        qkv = self.qkv(x).view(B, prod(grid), 3, self.num_heads, self.head_dims)
        out = self.mix(*qkv.unbind(2), tuple(grid))  # (B, N, M, D)
        return self.proj(self.norm(out.reshape(B, *grid, C)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, ...]) -> Tensor:
        """Mix tokens; all shapes are (B, N, M, D)."""
        raise NotImplementedError

    def _draw(self, *shape: int, std: float) -> nn.Parameter:
        return nn.Parameter(nn.init.normal_(torch.empty(shape), std=std))

    def _draw_table(self, name: str, *shape: int, grid: Sequence[int], std: float):
        table = self._draw(*shape, *_table_size(grid), std=std)
        self.register_parameter(name, table)
        if len(grid) == 2:
            fit_on_load(self, name)


class SelfAttention(Mixer):
    """Softmax attention, or equation 8 with tables of relative positions.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        grid: sides that the tables are made for, two or three.
        tables: number of tables that are added to the scores: None, 1 for all heads, or
            M. Without tables the projections have biases.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Sequence[int],
        *,
        tables: int | None = None,
    ):
        bias = tables is None
        super().__init__(embed_dims, num_heads, qkv_bias=bias, proj_bias=bias)
        self.register_parameter('table', None)
        if tables is not None:
            _check_tables(tables, num_heads)
            self._draw_table('table', tables, grid=grid, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Return the table, which is added, unlike the weights of other mixers."""
        return {'table'}

    def mix(self, q, k, v, grid):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
        bias = None
        if self.table is not None:
            bias = relative_matrices(self.table, grid).to(q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return copied(out.transpose(1, 2))


class RelativeAttention(Mixer):
    """Attention of equation 9, with 1 table or one for each of M heads."""

    def __init__(
        self, embed_dims: int, num_heads: int, grid: Sequence[int], *, tables: int = 1
    ):
        super().__init__(embed_dims, num_heads)
        _check_tables(tables, num_heads)
        std = prod(grid) ** -0.5
        self._draw_table('table', tables, grid=grid, std=std)

    def mix(self, q, k, v, grid):
        table = resize_table(self.table, grid)
        return relative_attention(q, k, v, table[0] if len(table) == 1 else table)


class PatternAttention(Mixer):
    """Attention of equation 10, or 11 if `hadamard`, with K `patterns`."""

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Sequence[int],
        *,
        patterns: int,
        hadamard: bool = False,
    ):
        super().__init__(embed_dims, num_heads)
        _check_patterns(patterns)
        std, channels = prod(grid) ** -0.5, (self.head_dims,) if hadamard else ()
        self._draw_table('table_a', *channels, patterns, grid=grid, std=std)
        self._draw_table('table_b', patterns, grid=grid, std=std)
        self.bias = self._draw(self.head_dims, patterns, std=0.02)

    def mix(self, q, k, v, grid):
        tables = (resize_table(table, grid) for table in (self.table_a, self.table_b))
        return pattern_attention(q, k, v, *tables, self.bias)


class LocalStructureAwareAttention(Mixer):
    """LiSA with kernels of R x R pixels, which are independent of the grid.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        patterns: structural patterns K.
        local_kernel: side R of the kernels; odd.
    """

    def __init__(
        self, embed_dims: int, num_heads: int, *, patterns: int, local_kernel: int
    ):
        super().__init__(embed_dims, num_heads, qkv_bias=True)
        _check_patterns(patterns)
        if local_kernel < 1 or local_kernel % 2 == 0:
            raise UserError(f'local_kernel must be odd, got {local_kernel}')
        size = (local_kernel, local_kernel)
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.w_a = self._draw(self.head_dims, patterns, *size, std=1 / local_kernel)
        self.w_b = self._draw(patterns, *size, std=1 / local_kernel)
        self.bias = self._draw(self.head_dims, patterns, std=0.02)

    def mix(self, q, k, v, grid):
        kernels = (self.w_a, self.w_b, self.bias)
        return local_structure_aware_attention(q, k, v, *kernels, grid=grid)


# Functions of channels, heads, grid, patterns and the side of local kernels.
VARIANTS = {
    'self_attention': lambda C, M, grid, K, R: SelfAttention(C, M, grid),
    'self_attention_rpe': lambda C, M, grid, K, R: SelfAttention(C, M, grid, tables=1),
    'self_attention_rpes': lambda C, M, grid, K, R: SelfAttention(C, M, grid, tables=M),
    'sa_eq9': lambda C, M, grid, K, R: RelativeAttention(C, M, grid),
    'sa_eq9_rpes': lambda C, M, grid, K, R: RelativeAttention(C, M, grid, tables=M),
    'sa_eq10': lambda C, M, grid, K, R: PatternAttention(C, M, grid, patterns=K),
    'sa_eq11': lambda C, M, grid, K, R: PatternAttention(
        C, M, grid, patterns=K, hadamard=True
    ),
    'local': lambda C, M, grid, K, R: LocalStructureAwareAttention(
        C, M, patterns=K, local_kernel=R
    ),
}


def _check_tables(tables: int, num_heads: int):
    if tables not in (1, num_heads):
        raise UserError(f'tables must be 1 or {num_heads} heads, got {tables}')


def _check_patterns(patterns: int):
    if patterns < 1:
        raise UserError(f'patterns must be at least 1, got {patterns}')


def _table_size(grid: Sequence[int]) -> tuple[int, ...]:
    return tuple(2 * side - 1 for side in grid)


def relative_matrices(table: Tensor, grid: Sequence[int]) -> Tensor:
    """Return matrices (..., N, N) of a grid from tables of relative positions.

    Raises:
        ValueError: tables of three sides were made for another grid.
    """
    return block_toeplitz(resize_table(table, grid), dims=len(grid))


def resize_table(table: Tensor, grid: Sequence[int]) -> Tensor:
    """Resize tables to another grid as Swin does, see `resize_grid`.

    The paper does not resize them.
    """
    size = _table_size(grid)
    if len(grid) == 2:
        return resize_grid(table, size)
    if tuple(table.shape[-len(grid) :]) != size:
        made_for = tuple((side + 1) // 2 for side in table.shape[-len(grid) :])
        raise UserError(
            f'tables of relative positions are made for the grid {made_for} and are '
            f'resized on grids of two sides only, got the grid {tuple(grid)}'
        )
    return table
