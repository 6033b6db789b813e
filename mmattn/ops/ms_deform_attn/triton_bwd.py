"""Multi-scale deformable attention in Triton: backward.

Gradients of points, weights and references are sums within a program. Atomic additions
sum the gradient of value in fp32. For deterministic algorithms it is summed in a fixed
order instead: points are noted by their cell, the square between four pixels, and
sorted. A program then takes some pixels and the points of the cells around them.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_rows, store_rows
from .triton_fwd import (
    corner,
    floor_place,
    load_pairs,
    load_parts,
    load_reference,
    load_softmax,
    load_weights,
    parts_of_rows,
    place_on_axis,
    program_block,
    share_of,
    softmax_statistics,
)

# Triton 3.6 fuses products with their sum over lanes, so that the lanes that hold a
# total write numbers to one place that differ in the last bit. A sum of the product and
# zero is fused in its stead.
RELEASE = tuple(map(int, triton.__version__.split('.')[:2]))
ROUNDS = tl.constexpr(RELEASE < (3, 8))


@triton.jit
def add_rows(ptr, x, rows, mask, D: tl.constexpr, DP: tl.constexpr, C: tl.constexpr):
    """Add x to `parts_of_rows` atomically."""
    offsets, mask = parts_of_rows(rows, mask, D, DP, C, 4)
    tl.atomic_add(ptr + offsets, x, mask=mask, sem='relaxed')


@triton.jit
def sum_of_query(x, BQ: tl.constexpr, BP: tl.constexpr):
    """Return the sum over a query's rows, for each of them."""
    total = tl.sum(tl.reshape(x, (BQ, BP)), axis=1)
    return tl.reshape(tl.broadcast_to(total[:, None], (BQ, BP)), (BQ * BP,))


@triton.jit
def store_pairs(ptr, rows, x, y, mask):
    pairs = tl.join(x, y).to(ptr.dtype.element_ty)
    mask = tl.broadcast_to(mask[:, None], (mask.shape[0], 2))
    tl.store(ptr + rows[:, None] + tl.arange(0, 2)[None, :], pairs, mask=mask)


@kernel
def _bwd_kernel(
    grad_ptr, value_ptr, points_ptr, weights_ptr, reference_ptr,
    dvalue_ptr, dpoints_ptr, dweights_ptr, dreference_ptr, cells_ptr, shares_ptr,
    v_b_units, v_s_units, v_m_units, S, Q, M, first_image, first_head, num_heads,
    num_cells, no_cell, H0, W0, H1, W1, H2, W2, H3, W3, H4, W4, H5, W5, H6, W6, H7, W7,
    L: tl.constexpr, P: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    LR: tl.constexpr, COORDS: tl.constexpr, UNIT: tl.constexpr,
    C: tl.constexpr, BQ: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    BK: tl.constexpr, ATOMICS: tl.constexpr,
):  # fmt: skip
    """Write gradients of points and weights, and shares (B, Q, M, LR, COORDS) of heads
    in the gradient of reference. With ATOMICS add to the value gradient (B, S, M, D).
    Otherwise write the cells and the (weight, x, y) of points of some images and heads.
    """
    sides = (H0, W0, H1, W1, H2, W2, H3, W3, H4, W4, H5, W5, H6, W6, H7, W7)
    b, m, first_query = program_block(Q, first_image, first_head, num_heads, BQ)
    value_ptr += b * v_b_units * UNIT + m * v_m_units * UNIT
    rows = tl.arange(0, BQ * BP)
    places, queries = rows % BP, first_query + rows // BP
    asks, of_query = queries < Q, b * Q + queries
    of_head = of_query * M + m
    samples = of_head * (L * P)
    if ATOMICS:
        dvalue_ptr += (b * S * M + m) * D
    else:
        noted = (b - first_image) * num_heads + m - first_head
        cells_start = (noted * num_cells).to(tl.int32)
        notes = (noted * Q + queries) * (L * P)
    # A lane has four channels, as in atomic additions, so that lanes exchange nothing.
    grad = load_parts(grad_ptr, of_head * D, asks, D, DP, C, 4)
    blocks: tl.constexpr = (P + BP - 1) // BP
    high, total = 0.0, 1.0
    if COORDS > 0:
        high, total = softmax_statistics(weights_ptr, samples, asks, L * P, BC)
        columns = tl.arange(0, BK)  # a column for each level and block of points
        all_dweights = tl.zeros([BQ * BP, BK], tl.float32)
        mean = tl.zeros([BQ * BP], tl.float32)
        ref_dx, ref_dy, ref_dw, ref_dh = mean, mean, mean, mean

    start = 0
    for level in tl.static_range(L):
        H, W = sides[2 * level], sides[2 * level + 1]
        references = (of_query * LR + (level if LR > 1 else 0)) * COORDS
        ref_x, ref_y, ref_w, ref_h = load_reference(
            reference_ptr, references, asks, COORDS
        )
        for block in range(blocks):
            point = block * BP + places
            exists = asks & (point < P)
            offsets = samples + level * P + point
            weight = load_weights(weights_ptr, offsets, exists, high, total, COORDS)
            x, y = load_pairs(points_ptr, offsets * 2, exists)
            x, rise_x, rise_w = place_on_axis(x, ref_x, ref_w, W, P, COORDS)
            y, rise_y, rise_h = place_on_axis(y, ref_y, ref_h, H, P, COORDS)
            left, top, x, y, near = floor_place(x, y, exists, H, W)

            dweight = tl.zeros([BQ * BP], tl.float32)
            dx, dy = dweight, dweight
            for i in tl.static_range(4):
                pixels, on_map = corner(i, left, top, near, H, W)
                pixels = (start + pixels).to(tl.int64)
                place = pixels * v_s_units * UNIT
                value = load_parts(value_ptr, place, on_map, D, DP, C, 4)
                product = grad * value
                if ROUNDS:
                    product += 0.0
                product = tl.sum(tl.sum(product, axis=0), axis=1)
                share = share_of(i, x, y)
                dweight += product * share
                dx += product * (y if i // 2 else 1.0 - y) * (1 if i % 2 else -1)
                dy += product * (x if i % 2 else 1.0 - x) * (1 if i // 2 else -1)
                if ATOMICS:
                    add_rows(
                        dvalue_ptr, grad * (weight * share)[None, :, None],
                        pixels * M * D, on_map, D, DP, C,
                    )  # fmt: skip
            dx, dy = dx * weight, dy * weight
            store_pairs(
                dpoints_ptr, offsets * 2,
                tl.where(near, dx * rise_x, 0.0), tl.where(near, dy * rise_y, 0.0),
                exists,
            )  # fmt: skip
            if not ATOMICS:
                # Columns and rows of cells begin left of and above the first pixels.
                cell = cells_start + (top + 1) * (W + 1) + left + 1
                cell = tl.where(near, cell, no_cell)
                note = notes + level * P + point
                tl.store(cells_ptr + note, cell, mask=exists)
                tl.store(shares_ptr + note * 3, weight, mask=exists)
                tl.store(shares_ptr + note * 3 + 1, x, mask=exists)
                tl.store(shares_ptr + note * 3 + 2, y, mask=exists)
            if COORDS > 0:
                chosen = (columns == level * blocks + block)[None, :]
                all_dweights = tl.where(chosen, dweight[:, None], all_dweights)
                mean += weight * dweight
                ref_dx += dx * W
                ref_dy += dy * H
                if COORDS == 4:
                    ref_dw += tl.where(near, dx * rise_w, 0.0)
                    ref_dh += tl.where(near, dy * rise_h, 0.0)
            else:
                dweight = dweight.to(dweights_ptr.dtype.element_ty)
                tl.store(dweights_ptr + offsets, dweight, mask=exists)
        if COORDS > 0 and (LR > 1 or level == L - 1):
            # The sum over a query's rows is stored by the first of them.
            stores = asks & (places == 0)
            shares = (of_head * LR + (level if LR > 1 else 0)) * COORDS
            sum_x, sum_y = sum_of_query(ref_dx, BQ, BP), sum_of_query(ref_dy, BQ, BP)
            store_pairs(dreference_ptr, shares, sum_x, sum_y, stores)
            if COORDS == 4:
                sum_x = sum_of_query(ref_dw, BQ, BP)
                sum_y = sum_of_query(ref_dh, BQ, BP)
                store_pairs(dreference_ptr, shares + 2, sum_x, sum_y, stores)
            ref_dx = tl.zeros([BQ * BP], tl.float32)
            ref_dy, ref_dw, ref_dh = ref_dx, ref_dx, ref_dx
        start += H * W
        if not ATOMICS:
            cells_start += (H + 1) * (W + 1)

    if COORDS > 0:
        point = (columns % blocks * BP)[None, :] + places[:, None]
        exists = asks[:, None] & (columns < L * blocks)[None, :] & (point < P)
        offsets = samples[:, None] + (columns // blocks * P)[None, :] + point
        weight = load_softmax(
            weights_ptr, offsets, exists, high[:, None], total[:, None]
        )
        mean = sum_of_query(mean, BQ, BP)
        dlogits = weight * (all_dweights - mean[:, None])
        dlogits = dlogits.to(dweights_ptr.dtype.element_ty)
        tl.store(dweights_ptr + offsets, dlogits, mask=exists)


@kernel
def _bwd_value_kernel(
    grad_ptr, order_ptr, bounds_ptr, shares_ptr, dvalue_ptr,
    S, Q, M, first_image, first_head, num_heads, num_cells,
    H0, W0, H1, W1, H2, W2, H3, W3, H4, W4, H5, W5, H6, W6, H7, W7,
    L: tl.constexpr, P: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Write the gradient of BS pixels of one head, BT points of each at a time."""
    sides = (H0, W0, H1, W1, H2, W2, H3, W3, H4, W4, H5, W5, H6, W6, H7, W7)
    b, m, first_pixel = program_block(S, first_image, first_head, num_heads, BS)
    noted = (b - first_image) * num_heads + m - first_head
    rows = tl.arange(0, BS * BT)
    pixels, turn = first_pixel + rows // BT, rows % BT
    exists = pixels < S
    # The cell right of and below each pixel, and the number of cells in a row there.
    cell, cells_in_row = tl.zeros_like(pixels), tl.zeros_like(pixels)
    start, cells_start = 0, 0
    for level in tl.static_range(L):
        H, W = sides[2 * level], sides[2 * level + 1]
        place = pixels - start
        here = (place >= 0) & (place < H * W)
        below = cells_start + (place // W + 1) * (W + 1) + place % W + 1
        cell = tl.where(here, below, cell)
        cells_in_row = tl.where(here, W + 1, cells_in_row)
        start += H * W
        cells_start += (H + 1) * (W + 1)

    acc = tl.zeros([BS * BT, DP], tl.float32)
    for above in tl.static_range(2):
        bounds = bounds_ptr + noted * num_cells + cell - above * cells_in_row
        begin = tl.load(bounds - 1, mask=exists, other=0)
        middle = tl.load(bounds, mask=exists, other=0)
        end = tl.load(bounds + 1, mask=exists, other=0)
        for first in range(0, tl.max(end - begin), BT):
            turns = begin + first + turn
            takes = turns < end
            notes = tl.load(order_ptr + turns, mask=takes, other=-1)
            weight = tl.load(shares_ptr + notes * 3, mask=takes, other=0.0)
            x = tl.load(shares_ptr + notes * 3 + 1, mask=takes, other=0.0)
            y = tl.load(shares_ptr + notes * 3 + 2, mask=takes, other=0.0)
            # Cells left of the pixel come first; it is their corner on the right.
            weight *= tl.where(turns < middle, x, 1.0 - x)
            weight *= y if above else 1.0 - y
            queries = (notes - noted * Q * (L * P)) // (L * P)
            heads = ((b * Q + queries) * M + m) * D
            # Not `takes`, with which Triton 3.6 fails to compile where DP is 64.
            grad = load_rows(grad_ptr, heads, notes >= 0, D, DP)
            acc += weight[:, None] * grad
    out = tl.sum(tl.reshape(acc, (BS, BT, DP)), axis=1)
    pixels = first_pixel + tl.arange(0, BS)
    store_rows(dvalue_ptr, out, ((b * S + pixels) * M + m) * D, pixels < S, D, DP)
