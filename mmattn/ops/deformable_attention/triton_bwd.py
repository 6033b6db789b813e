"""Deformable attention with shared keys in Triton: backward.

Scores are recomputed from the log-sum-exp. The gradient of the table is the sum over
keys of Y^T dS X. dS is the gradient of a key's scores on the grid of queries. Y and X
are the weights of the interpolation, the hats max(0, 1 - |place(query) - cell|) of the
axes. Products and sums have a fixed order, without atomic additions.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_operand, load_rows, program_block, store_rows
from ..triton.softmax import LOG2_E
from ..triton.tf32 import product, round_operand
from .triton_fwd import block_of_keys, group_of, load_places, table_values


@kernel
def _bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, places_ptr, table_ptr, out_ptr, lse_ptr,
    delta_ptr, dq_ptr, dscore_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    N, K, M, W, TH, TW, group_heads,
    step_y, step_x, first_image, first_query, num_queries, blocks, scale,
    D: tl.constexpr, DP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    UNIT_STEP: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write dq, delta = grad . out (B, M, N) and dS (images, M, K, num_queries) of
    `num_queries` queries of some images."""
    image, m, block = program_block(M, blocks)
    b = first_image + image
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    out_ptr += (b * N * M + m) * D
    dq_ptr += (b * N * M + m) * D
    places_ptr += group_of(b, m, M, group_heads) * K * 4
    table_ptr += m * (TH + 2) * (TW + 2) * 4
    dscore_ptr += (image * M + m) * K * num_queries + block * BQ
    columns = tl.arange(0, BQ)
    places = block * BQ + columns
    offsets = tl.arange(0, BK)[None, :] * num_queries + columns[:, None]
    asks = places < num_queries
    queries = first_query + places
    y, x = queries // W, queries % W
    q = load_operand(q_ptr, queries * q_n_stride, asks, D, DP, NATIVE)
    grad = load_operand(grad_ptr, queries * g_n_stride, asks, D, DP, NATIVE)
    out = load_rows(out_ptr, queries * (M * D), asks, D, DP)
    delta = tl.sum(out * grad.to(tl.float32), axis=1)
    stats = (b * M + m) * N + queries
    tl.store(delta_ptr + stats, delta, mask=asks)
    lse = tl.load(lse_ptr + stats, mask=asks, other=0.0) * LOG2_E

    dq = tl.zeros([BQ, DP], tl.float32)
    for first in range(0, K, BK):
        exist, k, v, score = block_of_keys(
            q, k_ptr, v_ptr, places_ptr, table_ptr, y, x, K - first, TH, TW,
            k_n_stride, v_n_stride, step_y, step_x, scale, D, DP, BK, UNIT_STEP,
            PRECISION, NATIVE,
        )  # fmt: skip
        prob = tl.where(exist[None, :], tl.exp2(score - lse[:, None]), 0.0)
        dprob = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        dscore = prob * (dprob - delta[:, None])
        tl.store(dscore_ptr + offsets, dscore, mask=asks[:, None] & exist[None, :])
        dq += product(dscore, k, PRECISION)
        k_ptr += BK * k_n_stride
        v_ptr += BK * v_n_stride
        places_ptr += BK * 4
        dscore_ptr += BK * num_queries
    store_rows(dq_ptr, dq * scale, queries * (M * D), asks, D, DP)


@kernel
def _bwd_keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, places_ptr, table_ptr, lse_ptr, delta_ptr,
    dk_ptr, dv_ptr, dpositions_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    B, N, K, M, W, TH, TW, group_heads,
    slope_y, slope_x, step_y, step_x, blocks, splits, blocks_of_split, scale,
    D: tl.constexpr, DP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    UNIT_STEP: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write shares (splits, B, K, M, D) of dk and dv, and (splits, B, M, K, 2) of each
    head's gradient of positions. Maps are [BK, BQ]."""
    b, m, block = program_block(M, blocks * splits)
    split, block = block // blocks, block % blocks
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    places_ptr += group_of(b, m, M, group_heads) * K * 4
    table_ptr += m * (TH + 2) * (TW + 2) * 4
    lse_ptr += (b * M + m) * N
    delta_ptr += (b * M + m) * N
    share = split * B + b
    dk_ptr += (share * K * M + m) * D
    dv_ptr += (share * K * M + m) * D
    dpositions_ptr += (share * M + m) * K * 2
    keys = block * BK + tl.arange(0, BK)
    exist = keys < K
    k = load_operand(k_ptr, keys * k_n_stride, exist, D, DP, NATIVE)
    v = load_operand(v_ptr, keys * v_n_stride, exist, D, DP, NATIVE)
    places = load_places(places_ptr, keys, exist)

    dk = tl.zeros([BK, DP], tl.float32)
    dv = tl.zeros([BK, DP], tl.float32)
    dy = tl.zeros([BK], tl.float32)
    dx = tl.zeros([BK], tl.float32)
    start = split * blocks_of_split * BQ
    q_ptr += start * q_n_stride
    grad_ptr += start * g_n_stride
    lse_ptr += start
    delta_ptr += start
    rows = tl.arange(0, BQ)
    for first in range(start, tl.minimum(start + blocks_of_split * BQ, N), BQ):
        queries = first + rows
        asks = queries < N
        q = load_operand(q_ptr, rows * q_n_stride, asks, D, DP, NATIVE)
        grad = load_operand(grad_ptr, rows * g_n_stride, asks, D, DP, NATIVE)
        # An lse of inf gives queries that do not exist no weight.
        lse = tl.load(lse_ptr + rows, mask=asks, other=float('inf')) * LOG2_E
        delta = tl.load(delta_ptr + rows, mask=asks, other=0.0)
        bias, rise_y, rise_x = table_values(
            table_ptr, places, queries // W, queries % W, step_y, step_x, TH, TW,
            UNIT_STEP,
        )  # fmt: skip
        score = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * LOG2_E)
        prob = tl.exp2(score + bias - lse[None, :])
        dv += product(prob, grad, PRECISION)
        dprob = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
        dscore = prob * (dprob - delta[None, :])
        dk += product(dscore, q, PRECISION)
        dy += tl.sum(dscore * rise_y, axis=1)
        dx += tl.sum(dscore * rise_x, axis=1)
        q_ptr += BQ * q_n_stride
        grad_ptr += BQ * g_n_stride
        lse_ptr += BQ
        delta_ptr += BQ
    store_rows(dk_ptr, dk * scale, keys * (M * D), exist, D, DP)
    store_rows(dv_ptr, dv, keys * (M * D), exist, D, DP)
    # Slopes of the table are in units of log 2.
    tl.store(dpositions_ptr + keys * 2, dx * -slope_x / LOG2_E, mask=exist)
    tl.store(dpositions_ptr + keys * 2 + 1, dy * -slope_y / LOG2_E, mask=exist)


@triton.jit
def queries_near(origin, step, cell, num_cells, first, last):
    """Return bounds, rounded outwards, of the queries in [first, last) that may have a
    weight on the cells in [cell, cell + num_cells)."""
    step = tl.maximum(step, 1e-30)  # a table of one cell has a step of 0
    low = tl.floor((cell - 1 - origin) / step)
    high = tl.ceil((cell + num_cells - origin) / step) + 1
    low = tl.minimum(tl.maximum(low, first), last)
    high = tl.minimum(tl.maximum(high, first), last)
    return low.to(tl.int32), high.to(tl.int32)


@triton.jit
def hats(origin, step, queries, cells):
    """Return the weights [queries, cells] of an axis."""
    place = origin + step * queries.to(tl.float32)
    return tl.maximum(1.0 - tl.abs(place[:, None] - cells.to(tl.float32)[None, :]), 0.0)


@kernel
def _bwd_table_kernel(
    dscore_ptr, places_ptr, dtable_ptr, K, M, W, TH, TW, group_heads,
    step_y, step_x, first_image, first_row, num_rows, num_keys, tiles_y, tiles_x,
    splits, keys_of_split,
    BY: tl.constexpr, BX: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write shares (splits, M, TH, TW) of the table's gradient, over keys of some
    images, from dS (images, M, K, num_rows * W). A program takes BY x BX cells of a
    head."""
    pid = tl.program_id(0)
    tiles = tiles_y * tiles_x
    tile, m, split = pid % tiles, pid // tiles % M, pid // (tiles * M)
    cell_y, cell_x = tile // tiles_x * BY, tile % tiles_x * BX
    cells_y, cells_x = cell_y + tl.arange(0, BY), cell_x + tl.arange(0, BX)
    last_row = first_row + num_rows
    num_groups, group = M // group_heads, m // group_heads

    acc = tl.zeros([BY, BX], tl.float32)
    start = split * keys_of_split
    for key in range(start, tl.minimum(start + keys_of_split, num_keys)):
        image, key_of_image = (key // K).to(tl.int64), key % K
        place = ((first_image + image) * num_groups + group) * K + key_of_image
        origin_y = tl.load(places_ptr + place * 4) - 1
        origin_y += tl.load(places_ptr + place * 4 + 2)
        origin_x = tl.load(places_ptr + place * 4 + 1) - 1
        origin_x += tl.load(places_ptr + place * 4 + 3)
        low_y, high_y = queries_near(origin_y, step_y, cell_y, BY, first_row, last_row)
        low_x, high_x = queries_near(origin_x, step_x, cell_x, BX, 0, W)
        ptr = dscore_ptr + ((image * M + m) * K + key_of_image) * num_rows * W
        for y in range(low_y, high_y, BH):
            rows = y + tl.arange(0, BH)
            part = tl.zeros([BH, BX], tl.float32)
            for x in range(low_x, high_x, BW):
                cols = x + tl.arange(0, BW)
                dscore = tl.load(
                    ptr + (rows - first_row)[:, None] * W + cols[None, :],
                    mask=(rows < high_y)[:, None] & (cols < high_x)[None, :],
                    other=0.0,
                )
                hats_x = round_operand(hats(origin_x, step_x, cols, cells_x), PRECISION)
                part += product(dscore, hats_x, PRECISION)
            hats_y = tl.trans(hats(origin_y, step_y, rows, cells_y))
            acc += product(hats_y, round_operand(part, PRECISION), PRECISION)
    dtable_ptr += (split * M + m).to(tl.int64) * TH * TW
    tl.store(
        dtable_ptr + cells_y[:, None] * TW + cells_x[None, :],
        acc,
        mask=(cells_y < TH)[:, None] & (cells_x < TW)[None, :],
    )
