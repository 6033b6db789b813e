"""Deformable attention with shared keys in Triton: forward, and what both passes share.

A program takes a block of queries of one head and loops over keys, in the manner of
FlashAttention. The bias of a query and a key is read from the table where it is needed.
A step from query to query is a constant step in the table, so of a key only the place
of query (0, 0) is computed: place(query) = offset - slope * position + step * query, on
each axis. Offsets inside an image have 32 bits. Scores are in units of log 2.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_operand, program_block
from ..triton.softmax import LOG2_E, add_block, store_attention


@kernel
def _cells_kernel(table_ptr, cells_ptr, TH, TW, BLOCK: tl.constexpr):
    """Write the cells (M, TH + 2, TW + 2, 4) between four entries of a table (M, TH,
    TW), which is 0 outside: the first entry, the rises to the next in x and y, and the
    rise of the rise. Cell (0, 0) is that of entry (-1, -1). Units are of log 2."""
    blocks = tl.cdiv((TH + 2) * (TW + 2), BLOCK)
    m, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    cells = block * BLOCK + tl.arange(0, BLOCK)
    y, x = cells // (TW + 2) - 1, cells % (TW + 2) - 1
    table_ptr += m * TH * TW + y * TW + x
    above, below = (y >= 0) & (y < TH), y + 1 < TH
    left, right = (x >= 0) & (x < TW), x + 1 < TW
    first = tl.load(table_ptr, mask=above & left, other=0.0)
    second = tl.load(table_ptr + 1, mask=above & right, other=0.0)
    third = tl.load(table_ptr + TW, mask=below & left, other=0.0)
    fourth = tl.load(table_ptr + TW + 1, mask=below & right, other=0.0)
    first, second = first.to(tl.float32) * LOG2_E, second.to(tl.float32) * LOG2_E
    third, fourth = third.to(tl.float32) * LOG2_E, fourth.to(tl.float32) * LOG2_E
    rise_x = second - first
    cells_ptr += (m * (TH + 2) * (TW + 2) + cells) * 4
    exist = y <= TH
    tl.store(cells_ptr, first, mask=exist)
    tl.store(cells_ptr + 1, rise_x, mask=exist)
    tl.store(cells_ptr + 2, third - first, mask=exist)
    tl.store(cells_ptr + 3, (fourth - third) - rise_x, mask=exist)


@kernel
def _places_kernel(
    positions_ptr, places_ptr, num_keys, offset_y, offset_x, slope_y, slope_x,
    BLOCK: tl.constexpr, UNIT_STEP: tl.constexpr,
):  # fmt: skip
    """Write the place (y, x) in the table that query (0, 0) has for each key, as its
    cell and the place in that with a step of 1, otherwise as a whole and 0."""
    keys = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = keys < num_keys
    x = tl.load(positions_ptr + keys * 2, mask=mask).to(tl.float32)
    y = tl.load(positions_ptr + keys * 2 + 1, mask=mask).to(tl.float32)
    y, x = offset_y - slope_y * y, offset_x - slope_x * x
    cell_y, cell_x = (tl.floor(y), tl.floor(x)) if UNIT_STEP else (y, x)
    tl.store(places_ptr + keys * 4, cell_y, mask=mask)
    tl.store(places_ptr + keys * 4 + 1, cell_x, mask=mask)
    tl.store(places_ptr + keys * 4 + 2, y - cell_y, mask=mask)
    tl.store(places_ptr + keys * 4 + 3, x - cell_x, mask=mask)


@triton.jit
def group_of(b, m, M, group_heads):
    """Return the offset group of a head among those of all images."""
    return ((b * M + m).to(tl.int32) // group_heads).to(tl.int64)


@triton.jit
def split_four(x):
    """Return the four numbers along the last axis."""
    x = tl.reshape(x, x.shape[:-1] + [2, 2])
    first, second = tl.split(x)
    a, c = tl.split(first)
    b, d = tl.split(second)
    return a, b, c, d


@triton.jit
def load_places(ptr, keys, mask):
    """Return what `_places_kernel` writes: cells y and x, and places in them."""
    ptrs = ptr + keys[:, None] * 4 + tl.arange(0, 4)[None, :]
    return split_four(tl.load(ptrs, mask=mask[:, None], other=0.0))


@triton.jit
def axis_cells(cell, place, query, step, side, UNIT_STEP: tl.constexpr):
    """Return the cell on an axis, and the place in it from 0 to 1.

    Keys are rows and queries are columns. With a step of 1 the place depends on the key
    alone. What lies outside the table takes the last cell, which is 0.
    """
    place = place[:, None]
    if UNIT_STEP:
        cell = cell.to(tl.int32)[:, None] + query[None, :]
    else:
        origin = cell[:, None] + step * query.to(tl.float32)[None, :]
        low = tl.floor(origin)
        cell, place = low.to(tl.int32), origin - low
    cell = cell.to(tl.uint32, bitcast=True)  # large where it was negative
    return tl.minimum(cell, (side + 1).to(tl.uint32)).to(tl.int32), place


@triton.jit
def table_values(
    ptr, places, y, x, step_y, step_x, TH, TW, UNIT_STEP: tl.constexpr
):  # fmt: skip
    """Return the bias of keys (rows) and queries (columns), and its slopes in y and x.

    Queries are the last axis, because Triton spreads that over lanes first, and the
    queries of a row read adjacent cells of the table. Units are of log 2.
    """
    cell_y, place_y = axis_cells(places[0], places[2], y, step_y, TH, UNIT_STEP)
    cell_x, place_x = axis_cells(places[1], places[3], x, step_x, TW, UNIT_STEP)
    # In 64 bits the factor is a part of the address.
    ptrs = ptr + (cell_y * (TW + 2) + cell_x).to(tl.int64) * 4
    cells = tl.load(ptrs[:, :, None] + tl.arange(0, 4)[None, None, :])
    first, rise_x, rise_y, twist = split_four(cells)
    rise_y += place_x * twist
    return first + place_x * rise_x + place_y * rise_y, rise_y, rise_x + place_y * twist


@triton.jit
def block_of_keys(
    q, k_ptr, v_ptr, places_ptr, table_ptr, y, x, num_keys, TH, TW,
    k_n_stride, v_n_stride, step_y, step_x, scale,
    D: tl.constexpr, DP: tl.constexpr, BK: tl.constexpr, UNIT_STEP: tl.constexpr,
    PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Return which of BK keys exist, as num_keys do, k, v, and scores of queries."""
    keys = tl.arange(0, BK)
    exist = keys < num_keys
    k = load_operand(k_ptr, keys * k_n_stride, exist, D, DP, NATIVE)
    v = load_operand(v_ptr, keys * v_n_stride, exist, D, DP, NATIVE)
    places = load_places(places_ptr, keys, exist)
    bias, _, _ = table_values(
        table_ptr, places, y, x, step_y, step_x, TH, TW, UNIT_STEP
    )
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
    score += tl.trans(bias)
    return exist, k, v, score


@kernel
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, places_ptr, table_ptr, out_ptr, lse_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, N, K, M, W, TH, TW, group_heads,
    step_y, step_x, blocks, scale,
    D: tl.constexpr, DP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    UNIT_STEP: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write out (B, N, M, D) and lse (B, M, N)."""
    b, m, block = program_block(M, blocks)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    places_ptr += group_of(b, m, M, group_heads) * K * 4
    table_ptr += m * (TH + 2) * (TW + 2) * 4
    queries = block * BQ + tl.arange(0, BQ)
    y, x, asks = queries // W, queries % W, queries < N
    q = load_operand(q_ptr, queries * q_n_stride, asks, D, DP, NATIVE)

    high = tl.full([BQ], float('-inf'), tl.float32)
    total = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, DP], tl.float32)
    for first in range(0, K, BK):
        exist, _, v, score = block_of_keys(
            q, k_ptr, v_ptr, places_ptr, table_ptr, y, x, K - first, TH, TW,
            k_n_stride, v_n_stride, step_y, step_x, scale, D, DP, BK, UNIT_STEP,
            PRECISION, NATIVE,
        )  # fmt: skip
        score = tl.where(exist[None, :], score, float('-inf'))
        high, total, acc = add_block(high, total, acc, score, v, PRECISION)
        k_ptr += BK * k_n_stride
        v_ptr += BK * v_n_stride
        places_ptr += BK * 4
    store_attention(
        out_ptr, lse_ptr, high, total, acc, b, m, queries, asks, N, M, D, DP
    )
