"""Backward kernels of mixed attention in Triton, which recompute the maps.

A program takes a block of row_tiles x col_tiles tiles and adds up its own share of
every gradient. Shares of different programs lie along the first axis of the outputs.
"""

import triton
import triton.language as tl

from ..triton_jit import kernel
from ..triton_tf32 import round_operand
from .triton_fwd import (
    add_rows,
    head_product,
    load_mixing,
    load_rows,
    mixed_product,
    softmax,
)


@triton.jit
def program_splits(groups, row_splits, col_splits):
    """Return number, splits of rows and columns, batch element and group."""
    pid = tl.program_id(0)
    col_split, row_split = pid % col_splits, pid // col_splits % row_splits
    batch = pid // (col_splits * row_splits)
    return pid, row_split, col_split, (batch // groups).to(tl.int64), batch % groups


@triton.jit
def split_tiles(
    row_split, col_split, row_tiles, col_tiles, R, S, BR: tl.constexpr, BC: tl.constexpr
):
    """Return first row and column of a split, and its tiles along each side."""
    first_row = row_split * row_tiles * BR
    first_col = col_split * col_tiles * BC
    my_row_tiles = tl.cdiv(tl.minimum(row_tiles * BR, R - first_row), BR)
    my_col_tiles = tl.cdiv(tl.minimum(col_tiles * BC, S - first_col), BC)
    return first_row, first_col, my_row_tiles, my_col_tiles


@triton.jit
def tile_places(
    tile, first_row, first_col, my_col_tiles, R, S,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Return numbers of a tile, its rows and columns, and which of these exist."""
    row_tile, col_tile = tile // my_col_tiles, tile % my_col_tiles
    rows = (first_row + row_tile * BR + tl.arange(0, BR)).to(tl.int64)
    cols = (first_col + col_tile * BC + tl.arange(0, BC)).to(tl.int64)
    return row_tile, col_tile, rows, cols, rows < R, cols < S


@kernel
def _bwd_values_kernel(
    x_ptr, y_ptr, v_ptr, grad_ptr, w1_ptr, w2_ptr, lse_ptr, delta_ptr, dv_ptr, dw2_ptr,
    x_b_stride, x_r_stride, x_m_stride, y_b_stride, y_r_stride, y_m_stride,
    v_b_stride, v_r_stride, v_m_stride, g_b_stride, g_r_stride, g_m_stride,
    B, R, S, num_heads, groups, row_splits, row_tiles, col_splits, col_tiles, scale,
    D: tl.constexpr, M: tl.constexpr, E: tl.constexpr, EB: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, MIX: tl.constexpr,
    PRECISION: tl.constexpr, ONE_ROW_TILE: tl.constexpr,
):  # fmt: skip
    """Write gradients behind the softmax: dv (row_splits, B, S, heads, D), dw2
    (programs, M, E) and delta = sum_s P dP (col_splits, B, groups * E, R)."""
    pid, row_split, col_split, b, g = program_splits(groups, row_splits, col_splits)
    x_ptr += b * x_b_stride + g * x_m_stride
    y_ptr += b * y_b_stride + g * y_m_stride
    v_ptr += b * v_b_stride + g * v_m_stride
    grad_ptr += b * g_b_stride + g * g_m_stride
    lse_ptr += (b * groups + g) * E * R
    delta_ptr += ((col_split * B + b) * groups + g) * E * R
    heads = groups * M
    dv_ptr += (row_split * B + b) * S * heads * D + g * D
    if MIX:
        dw2_ptr += pid.to(tl.int64) * M * E

    first_row, first_col, my_row_tiles, my_col_tiles = split_tiles(
        row_split, col_split, row_tiles, col_tiles, R, S, BR, BC
    )
    for tile in range(my_row_tiles * my_col_tiles):
        row_tile, col_tile, rows, cols, row_mask, col_mask = tile_places(
            tile, first_row, first_col, my_col_tiles, R, S, BR, BC
        )
        g_rows, v_rows = rows * g_r_stride, cols * v_r_stride
        for e0 in range(0, E, EB):
            e = e0 + tl.arange(0, EB)
            stats = e[:, None] * R + rows[None, :]
            stats_mask = (e < E)[:, None] & row_mask[None, :]
            scores = mixed_product(
                y_ptr, x_ptr, w1_ptr, cols * y_r_stride, rows * x_r_stride,
                col_mask, row_mask, y_m_stride, x_m_stride, M, 1, scale, num_heads, e,
                D, E, EB, BC, BR, BD, MIX, PRECISION,
            )  # fmt: skip
            lse = tl.load(lse_ptr + stats, mask=stats_mask, other=0.0)
            prob = softmax(scores, lse, col_mask, e, E)

            new = col_tile == 0
            delta = tl.load(delta_ptr + stats, mask=stats_mask & (not new), other=0.0)
            for m in range(num_heads):
                w2 = load_mixing(w2_ptr, m * E, 1, e, E, EB, MIX)
                dattn = head_product(
                    v_ptr + m * v_m_stride, grad_ptr + m * g_m_stride,
                    v_rows, g_rows, col_mask, row_mask, D, BD, PRECISION,
                )  # fmt: skip
                row_sums = tl.sum(prob * dattn[None, :, :], axis=1)  # [EB, BR]
                delta += w2[:, None] * row_sums
                if MIX:
                    dw2 = tl.sum(row_sums, axis=1)
                    add_mixing(dw2_ptr + m * E + e, dw2, e < E, tile == 0)
                attn = tl.sum(w2[:, None, None] * prob, axis=0)  # [BC, BR]
                attn = round_operand(attn, PRECISION)
                for d in range(0, D, BD):
                    grad = load_rows(
                        grad_ptr + m * g_m_stride, g_rows, row_mask, d, D, BD, PRECISION
                    )
                    add_rows(
                        dv_ptr + m * D, tl.dot(attn, grad, input_precision=PRECISION),
                        cols * (heads * D), col_mask, d, (row_tile == 0) & (e0 == 0),
                        D, BD, ONE_ROW_TILE,
                    )  # fmt: skip
            tl.store(delta_ptr + stats, delta, mask=stats_mask)
            tl.debug_barrier()  # the next tile adds to what this one wrote


@kernel
def _bwd_scores_kernel(
    x_ptr, y_ptr, v_ptr, grad_ptr, w1_ptr, w2_ptr, lse_ptr, delta_ptr,
    dx_ptr, dy_ptr, dw1_ptr,
    x_b_stride, x_r_stride, x_m_stride, y_b_stride, y_r_stride, y_m_stride,
    v_b_stride, v_r_stride, v_m_stride, g_b_stride, g_r_stride, g_m_stride,
    B, R, S, num_heads, groups, row_splits, row_tiles, col_splits, col_tiles, scale,
    D: tl.constexpr, M: tl.constexpr, E: tl.constexpr, EB: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, MIX: tl.constexpr,
    PRECISION: tl.constexpr, ONE_ROW_TILE: tl.constexpr, ONE_COL_TILE: tl.constexpr,
):  # fmt: skip
    """Write gradients before the softmax: dx (col_splits, B, R, heads, D), dy
    (row_splits, B, S, heads, D) and dw1 (programs, E, M)."""
    pid, row_split, col_split, b, g = program_splits(groups, row_splits, col_splits)
    x_ptr += b * x_b_stride + g * x_m_stride
    y_ptr += b * y_b_stride + g * y_m_stride
    v_ptr += b * v_b_stride + g * v_m_stride
    grad_ptr += b * g_b_stride + g * g_m_stride
    lse_ptr += (b * groups + g) * E * R
    delta_ptr += (b * groups + g) * E * R
    heads = groups * M
    dx_ptr += (col_split * B + b) * R * heads * D + g * D
    dy_ptr += (row_split * B + b) * S * heads * D + g * D
    if MIX:
        dw1_ptr += pid.to(tl.int64) * E * M

    first_row, first_col, my_row_tiles, my_col_tiles = split_tiles(
        row_split, col_split, row_tiles, col_tiles, R, S, BR, BC
    )
    for tile in range(my_row_tiles * my_col_tiles):
        row_tile, col_tile, rows, cols, row_mask, col_mask = tile_places(
            tile, first_row, first_col, my_col_tiles, R, S, BR, BC
        )
        x_rows, y_rows = rows * x_r_stride, cols * y_r_stride
        for e0 in range(0, E, EB):
            e = e0 + tl.arange(0, EB)
            stats = e[:, None] * R + rows[None, :]
            stats_mask = (e < E)[:, None] & row_mask[None, :]
            scores = mixed_product(
                y_ptr, x_ptr, w1_ptr, y_rows, x_rows, col_mask, row_mask,
                y_m_stride, x_m_stride, M, 1, scale, num_heads, e,
                D, E, EB, BC, BR, BD, MIX, PRECISION,
            )  # fmt: skip
            lse = tl.load(lse_ptr + stats, mask=stats_mask, other=0.0)
            prob = softmax(scores, lse, col_mask, e, E)
            dprob = mixed_product(
                v_ptr, grad_ptr, w2_ptr, cols * v_r_stride, rows * g_r_stride,
                col_mask, row_mask, v_m_stride, g_m_stride, 1, E, 1.0, num_heads, e,
                D, E, EB, BC, BR, BD, MIX, PRECISION,
            )  # fmt: skip
            delta = tl.load(delta_ptr + stats, mask=stats_mask, other=0.0)
            dscores = prob * (dprob - delta[:, None, :])

            for m in range(num_heads):
                w1 = load_mixing(w1_ptr, m, M, e, E, EB, MIX)
                if MIX:
                    product = scale * head_product(
                        y_ptr + m * y_m_stride, x_ptr + m * x_m_stride,
                        y_rows, x_rows, col_mask, row_mask, D, BD, PRECISION,
                    )  # fmt: skip
                    terms = tl.reshape(dscores * product[None, :, :], [EB, BC * BR])
                    dw1 = tl.sum(terms, axis=1)
                    add_mixing(dw1_ptr + m + e * M, dw1, e < E, tile == 0)
                dproduct = scale * tl.sum(w1[:, None, None] * dscores, axis=0)
                dproduct = round_operand(dproduct, PRECISION)
                for d in range(0, D, BD):
                    y = load_rows(
                        y_ptr + m * y_m_stride, y_rows, col_mask, d, D, BD, PRECISION
                    )
                    add_rows(
                        dx_ptr + m * D,
                        tl.dot(tl.trans(dproduct), y, input_precision=PRECISION),
                        rows * (heads * D), row_mask, d, (col_tile == 0) & (e0 == 0),
                        D, BD, ONE_COL_TILE,
                    )  # fmt: skip
                    x = load_rows(
                        x_ptr + m * x_m_stride, x_rows, row_mask, d, D, BD, PRECISION
                    )
                    add_rows(
                        dy_ptr + m * D, tl.dot(dproduct, x, input_precision=PRECISION),
                        cols * (heads * D), col_mask, d, (row_tile == 0) & (e0 == 0),
                        D, BD, ONE_ROW_TILE,
                    )  # fmt: skip
            tl.debug_barrier()  # the next tile adds to what this one wrote


@triton.jit
def add_mixing(ptrs, value, mask, new):
    """Add to one head's entries of this program's share of dw1 or dw2."""
    value += tl.load(ptrs, mask=mask & (not new), other=0.0)
    tl.store(ptrs, value, mask=mask)
