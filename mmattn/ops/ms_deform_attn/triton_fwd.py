"""Multi-scale deformable attention in Triton: forward, and what both passes share.

A program takes a block of queries of one head. A row of its tile is a point of a query
and has all channels, in C parts. A lane reads up to 16 bytes of each part of the four
pixels around a point, so that few lanes compute the same place. The points of a query
are summed once, at the end.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel


@triton.jit
def program_block(Q, first_image, first_head, num_heads, BQ: tl.constexpr):
    """Return image, head and first query. Heads vary fastest: the heads of a query
    and of a pixel are adjacent in memory."""
    pid, blocks = tl.program_id(0), tl.cdiv(Q, BQ)
    m, block = first_head + pid % num_heads, pid // num_heads % blocks
    b = first_image + pid // (num_heads * blocks)
    return b.to(tl.int64), m.to(tl.int64), block * BQ


@triton.jit
def softmax_statistics(ptr, rows, asks, LP: tl.constexpr, BC: tl.constexpr):
    """Return the largest of the LP logits of rows, and the sum of exponentials."""
    high = tl.full([rows.shape[0]], float('-inf'), tl.float32)
    total = tl.zeros([rows.shape[0]], tl.float32)
    for first in range(0, LP, BC):
        cols = first + tl.arange(0, BC)
        logits = tl.load(
            ptr + rows[:, None] + cols[None, :],
            mask=asks[:, None] & (cols < LP)[None, :],
            other=float('-inf'),
        ).to(tl.float32)
        new = tl.maximum(high, tl.max(logits, axis=1))
        shift = tl.where(new == float('-inf'), 0.0, new)
        total *= tl.exp(high - shift)
        total += tl.sum(tl.exp(logits - shift[:, None]), axis=1)
        high = new
    return high, total


@triton.jit
def load_softmax(ptr, rows, mask, high, total):
    """Load logits and return their softmax."""
    logits = tl.load(ptr + rows, mask=mask, other=float('-inf')).to(tl.float32)
    return tl.exp(logits - high) / total


@triton.jit
def load_weights(ptr, rows, mask, high, total, COORDS: tl.constexpr):
    """Return the softmax of logits where there is a reference, or the weights."""
    if COORDS > 0:
        weight = load_softmax(ptr, rows, mask, high, total)
    else:
        weight = tl.load(ptr + rows, mask=mask, other=0.0).to(tl.float32)
    return weight


@triton.jit
def load_pairs(ptr, rows, mask):
    """Load x and y in fp32."""
    x = tl.load(ptr + rows, mask=mask, other=0.0)
    y = tl.load(ptr + rows + 1, mask=mask, other=0.0)
    return x.to(tl.float32), y.to(tl.float32)


@triton.jit
def load_reference(ptr, rows, mask, COORDS: tl.constexpr):
    """Load x, y, width and height; those that a reference lacks are 0."""
    x = tl.zeros([rows.shape[0]], tl.float32)
    y, w, h = x, x, x
    if COORDS > 0:
        x, y = load_pairs(ptr, rows, mask)
    if COORDS == 4:
        w, h = load_pairs(ptr, rows + 2, mask)
    return x, y, w, h


@triton.jit
def place_on_axis(point, center, size, side, P: tl.constexpr, COORDS: tl.constexpr):
    """Return the place in pixels, 0 at the center of the first, and its derivatives by
    the point and by the size of the reference box."""
    if COORDS == 0:
        place, rise, size_rise = point * side, side + 0.0, 0.0
    elif COORDS == 2:
        place, rise, size_rise = center * side + point, 1.0, 0.0
    else:
        place = (center + point * (0.5 / P) * size) * side
        rise, size_rise = (0.5 / P) * size * side, (0.5 / P) * point * side
    return place - 0.5, rise, size_rise


@triton.jit
def floor_place(x, y, exists, H, W):
    """Return column and row of the pixel left of and above places, -1 before the first,
    the distance from it, and whether any pixel has a weight."""
    near = exists & (x > -1.0) & (x < W) & (y > -1.0) & (y < H)  # false for NaN
    x, y = tl.where(near, x, 0.0), tl.where(near, y, 0.0)
    left, top = tl.floor(x), tl.floor(y)
    return left.to(tl.int32), top.to(tl.int32), x - left, y - top, near


@triton.jit
def corner(i: tl.constexpr, left, top, near, H, W):
    """Return the pixel of its level at corner i of 4, and whether it exists.

    A place that is near has one of two columns and of two rows on the map.
    """
    col, row = left + i % 2, top + i // 2
    on_map = near & (col < W if i % 2 else col >= 0) & (row < H if i // 2 else row >= 0)
    return row * W + col, on_map


@triton.jit
def share_of(i: tl.constexpr, x, y):
    """Return the bilinear weight of corner i, at distance x and y from corner 0."""
    return (x if i % 2 else 1.0 - x) * (y if i // 2 else 1.0 - y)


@triton.jit
def parts_of_rows(
    rows, mask, D: tl.constexpr, DP: tl.constexpr, C: tl.constexpr, LANE: tl.constexpr
):
    """Return offsets and mask [C, len(rows), DP / C] of the channels of rows.

    Args:
        rows, mask: offsets of rows, and whether they exist.
        D, DP, C: channels, which pad to DP, in C parts.
        LANE: most channels of a part that a lane reads at once.
    """
    d = tl.max_contiguous(tl.arange(0, DP // C), LANE)[None, None, :]
    d += tl.arange(0, C)[:, None, None] * (DP // C)
    # No broadcast mask: the interpreter's atomic additions ignore strides.
    return rows[None, :, None] + d, mask[None, :, None] & (d < D)


@triton.jit
def load_parts(
    ptr, rows, mask, D: tl.constexpr, DP: tl.constexpr, C: tl.constexpr,
    LANE: tl.constexpr,
):  # fmt: skip
    """Load `parts_of_rows` in fp32."""
    offsets, mask = parts_of_rows(rows, mask, D, DP, C, LANE)
    return tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)


@kernel
def _fwd_kernel(
    value_ptr, points_ptr, weights_ptr, reference_ptr, out_ptr,
    v_b_units, v_s_units, v_m_units, Q, M,
    H0, W0, H1, W1, H2, W2, H3, W3, H4, W4, H5, W5, H6, W6, H7, W7,
    L: tl.constexpr, P: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    LR: tl.constexpr, COORDS: tl.constexpr, UNIT: tl.constexpr,
    C: tl.constexpr, BQ: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write out (B, Q, M, D). Strides of value are in units of UNIT elements."""
    sides = (H0, W0, H1, W1, H2, W2, H3, W3, H4, W4, H5, W5, H6, W6, H7, W7)
    b, m, first_query = program_block(Q, 0, 0, M, BQ)
    value_ptr += b * v_b_units * UNIT + m * v_m_units * UNIT
    rows = tl.arange(0, BQ * BP)
    queries, place = first_query + rows // BP, rows % BP
    asks = queries < Q
    samples = ((b * Q + queries) * M + m) * (L * P)
    high, total = 0.0, 1.0  # of logits, which only a call with references has
    if COORDS > 0:
        high, total = softmax_statistics(weights_ptr, samples, asks, L * P, BC)

    acc = tl.zeros([C, BQ * BP, DP // C], tl.float32)
    start = 0
    for level in tl.static_range(L):
        H, W = sides[2 * level], sides[2 * level + 1]
        references = ((b * Q + queries) * LR + (level if LR > 1 else 0)) * COORDS
        ref_x, ref_y, ref_w, ref_h = load_reference(
            reference_ptr, references, asks, COORDS
        )
        for first in range(0, P, BP):
            exists = asks & (first + place < P)
            offsets = samples + level * P + first + place
            weight = load_weights(weights_ptr, offsets, exists, high, total, COORDS)
            x, y = load_pairs(points_ptr, offsets * 2, exists)
            x, _, _ = place_on_axis(x, ref_x, ref_w, W, P, COORDS)
            y, _, _ = place_on_axis(y, ref_y, ref_h, H, P, COORDS)
            left, top, x, y, near = floor_place(x, y, exists, H, W)
            for i in tl.static_range(4):
                pixels, on_map = corner(i, left, top, near, H, W)
                pixels = (start + pixels).to(tl.int64) * v_s_units * UNIT
                value = load_parts(value_ptr, pixels, on_map, D, DP, C, DP)
                # A product of weight and share as rows would go through shared memory.
                share = share_of(i, x, y)[None, :, None]
                acc += (weight[None, :, None] * share) * value
        start += H * W
    out = tl.sum(tl.reshape(acc, (C, BQ, BP, DP // C)), axis=2)
    queries = first_query + tl.arange(0, BQ)
    rows = ((b * Q + queries) * M + m) * D
    offsets, mask = parts_of_rows(rows, queries < Q, D, DP, C, DP)
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
