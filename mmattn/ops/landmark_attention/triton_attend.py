"""The kernel of all products with maps of landmark attention, in Triton.

Rows X attend to columns Y with values V, and all channels of the heads that mix are
channels of one head, as mixing is folded into the landmarks. README.md in this folder
has the equations and says which tensors each launch is given. Scores are in units of
log 2.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel

LAZY = tl.constexpr(8.0)  # the log 2 by which a score may exceed the subtracted maximum


@triton.jit
def load_parts(
    ptr, rows, first, lo_stride, C: tl.constexpr, BD: tl.constexpr, PARTS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Load channels [first, first + BD) of rows, which are offsets, for a product.

    A folded tensor in half precision has two parts, whose sum it is.
    """
    c = first + tl.arange(0, BD)
    parts = ()
    for i in tl.static_range(0, PARTS):
        ptrs = ptr + i * lo_stride + rows[:, None] + c[None, :]
        if C % BD:
            x = tl.load(ptrs, mask=(c < C)[None, :], other=0.0)
        else:
            x = tl.load(ptrs)
        parts = parts + (x if NATIVE else x.to(tl.float32),)
    return parts


@triton.jit
def load_chunks(
    ptr, rows, lo_stride, C: tl.constexpr, BD: tl.constexpr, PARTS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Load all channels of rows as a tuple of chunks."""
    chunks = ()
    for first in tl.static_range(0, C, BD):
        chunks = chunks + (
            load_parts(ptr, rows, first, lo_stride, C, BD, PARTS, NATIVE),
        )
    return chunks


@triton.jit
def add_chunk(
    total, x, y, X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr, PRECISION: tl.constexpr
):
    """Return total + X Y^T of a chunk of channels."""
    for i in tl.static_range(0, X_PARTS):
        for j in tl.static_range(0, Y_PARTS):
            total = tl.dot(x[i], tl.trans(y[j]), total, input_precision=PRECISION)
    return total


@triton.jit
def scores(
    chunks, x_ptr, x_rows, y_ptr, y_rows, lo_stride, C: tl.constexpr, BD: tl.constexpr,
    KEEP: tl.constexpr, X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr,
    NATIVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return X Y^T over all channels. KEEP: `chunks` are X's."""
    total = tl.zeros([x_rows.shape[0], y_rows.shape[0]], tl.float32)
    if KEEP:
        for i in tl.static_range(0, (C + BD - 1) // BD):
            y = load_parts(y_ptr, y_rows, i * BD, lo_stride, C, BD, Y_PARTS, NATIVE)
            total = add_chunk(total, chunks[i], y, X_PARTS, Y_PARTS, PRECISION)
    else:
        for first in tl.range(0, C, BD, num_stages=1):
            x = load_parts(x_ptr, x_rows, first, lo_stride, C, BD, X_PARTS, NATIVE)
            y = load_parts(y_ptr, y_rows, first, lo_stride, C, BD, Y_PARTS, NATIVE)
            total = add_chunk(total, x, y, X_PARTS, Y_PARTS, PRECISION)
    return total


@triton.jit
def masked_scores(
    chunks, x_ptr, x_rows, y_ptr, y_r_stride, lo_stride, first, S,
    C: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, KEEP: tl.constexpr,
    X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr, NATIVE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return X Y^T of columns [first, first + BC), -inf beyond S."""
    cols = first + tl.arange(0, BC)
    y_rows = tl.minimum(cols, S - 1) * y_r_stride
    s = scores(
        chunks, x_ptr, x_rows, y_ptr, y_rows, lo_stride, C, BD, KEEP, X_PARTS, Y_PARTS,
        NATIVE, PRECISION,
    )  # fmt: skip
    if first + BC > S:
        s = tl.where((cols < S)[None, :], s, float('-inf'))
    return s


@triton.jit
def add_values(
    acc, weights, w_ptr, w_rows, first, lo_stride, C: tl.constexpr, BD: tl.constexpr,
    CHUNKS: tl.constexpr, PARTS: tl.constexpr, NATIVE: tl.constexpr,
    PRECISION: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Return acc + weights W, chunk by chunk from channel `first` on.

    LOW: in half precision weights have two parts too, whose sum they are.
    """
    high = weights.to(w_ptr.dtype.element_ty)
    low = (weights - high.to(tl.float32)).to(w_ptr.dtype.element_ty)
    high, low = (high, low) if NATIVE else (high.to(tl.float32), low.to(tl.float32))
    new = ()
    for i in tl.static_range(0, CHUNKS):
        w = load_parts(w_ptr, w_rows, first + i * BD, lo_stride, C, BD, PARTS, NATIVE)
        total = tl.dot(high, w[0], acc[i], input_precision=PRECISION)
        if LOW and w_ptr.dtype.element_ty != tl.float32:
            total = tl.dot(low, w[0], total, input_precision=PRECISION)
        if PARTS == 2:
            total = tl.dot(high, w[1], total, input_precision=PRECISION)
        new = new + (total,)
    return new


@triton.jit
def attend(
    x_ptr, g_ptr, y_ptr, v_ptr, out_ptr, lse_ptr, delta_ptr,
    x_b_stride, x_r_stride, x_g_stride, g_b_stride, g_r_stride, g_g_stride,
    y_b_stride, y_r_stride, y_g_stride, v_b_stride, v_r_stride, v_g_stride,
    out_b_stride, out_r_stride, out_g_stride,
    pid, B, R, S, row_tiles, splits, tiles_per_split, out_size, lo_stride, out_scale,
    C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CHUNKS: tl.constexpr, PARTS: tl.constexpr, KEEP: tl.constexpr, MANY: tl.constexpr,
    STATS: tl.constexpr, GRAD: tl.constexpr, NATIVE: tl.constexpr,
    PRECISION: tl.constexpr, X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr,
    KEEP_G: tl.constexpr, FOLDED: tl.constexpr, GROUPS: tl.constexpr,
    ROW_SEGMENTS: tl.constexpr, COL_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Write what `_attend_kernel` describes, for one of its programs."""
    part, pid = pid % PARTS, pid // PARTS
    split = 0
    if FOLDED:
        split, pid = pid % splits, pid // splits
    tile, pid = pid % row_tiles, pid // row_tiles
    segment, group = pid % ROW_SEGMENTS, pid // ROW_SEGMENTS
    b, g = (group // GROUPS).to(tl.int64), group % GROUPS
    rows = tile * BR + tl.arange(0, BR)
    row_mask = rows < R
    # Every part computes the same statistics. A scalar beside a mask fails in the
    # interpreter of Triton 3.9, so it is compared as a row.
    stats_mask = row_mask & (rows * 0 == part)
    near = tl.minimum(rows, R - 1)
    x_ptr += b * x_b_stride + g * x_g_stride + segment * R * C
    y_ptr += b * y_b_stride + g * y_g_stride
    v_ptr += b * v_b_stride + g * v_g_stride
    out_ptr += b * out_b_stride + g * out_g_stride + segment * R * C
    if FOLDED:
        out_ptr += split.to(tl.int64) * out_size
    x_rows, g_rows = near * x_r_stride, near
    x_chunks, g_chunks = (), ()
    if KEEP:
        x_chunks = load_chunks(x_ptr, x_rows, lo_stride, C, BD, X_PARTS, NATIVE)
    if GRAD:
        g_ptr += b * g_b_stride + g * g_g_stride + segment * R * C
        g_rows = near * g_r_stride
        if KEEP_G:
            g_chunks = load_chunks(g_ptr, g_rows, lo_stride, C, BD, X_PARTS, NATIVE)
    acc = ()
    for _ in tl.static_range(0, CHUNKS):
        acc = acc + (tl.zeros([BR, BD], tl.float32),)
    high = tl.full([BR], float('-inf'), tl.float32)
    total = tl.zeros([BR], tl.float32)
    first_col = split * tiles_per_split * BC
    last_col = tl.minimum(first_col + tiles_per_split * BC, S)
    channel = part * CHUNKS * BD

    stats = S if STATS == 'col' else R
    if STATS == 'online':
        lse_ptr += (split * B * GROUPS + group).to(tl.int64) * R
    else:
        lse_ptr += (pid * COL_SEGMENTS).to(tl.int64) * stats
    if GRAD:
        delta_ptr += (pid * COL_SEGMENTS).to(tl.int64) * stats
    for _ in tl.range(0, COL_SEGMENTS, disable_licm=True, num_stages=1):
        if STATS == 'row' or STATS == 'own delta':
            lse = tl.load(lse_ptr + near)
        if STATS == 'row':
            delta = tl.load(delta_ptr + near)
        if STATS == 'own delta':
            delta = tl.zeros([BR], tl.float32)
        if MANY:
            high = tl.full([BR], float('-inf'), tl.float32)
            total = tl.zeros([BR], tl.float32)
            for first in tl.range(0, S, BC, disable_licm=True, num_stages=1):
                s = masked_scores(
                    x_chunks, x_ptr, x_rows, y_ptr, y_r_stride, lo_stride, first, S,
                    C, BC, BD, KEEP, X_PARTS, Y_PARTS, NATIVE, PRECISION,
                )  # fmt: skip
                if STATS == 'own':
                    new = tl.maximum(high, tl.max(s, axis=1))
                    total *= tl.exp2(high - new)
                    total += tl.sum(tl.exp2(s - new[:, None]), axis=1)
                    high = new
                else:
                    cols = tl.minimum(first + tl.arange(0, BC), S - 1)
                    dprob = scores(
                        g_chunks, g_ptr, g_rows, v_ptr, cols * v_r_stride, lo_stride,
                        C, BD, KEEP_G, X_PARTS, Y_PARTS, NATIVE, PRECISION,
                    )  # fmt: skip
                    delta += tl.sum(tl.exp2(s - lse[:, None]) * dprob, axis=1)
        for first in tl.range(first_col, last_col, BC, disable_licm=True, num_stages=1):
            s = masked_scores(
                x_chunks, x_ptr, x_rows, y_ptr, y_r_stride, lo_stride, first, S,
                C, BC, BD, KEEP, X_PARTS, Y_PARTS, NATIVE, PRECISION,
            )  # fmt: skip
            cols = tl.minimum(first + tl.arange(0, BC), S - 1)
            if STATS == 'online':
                new = tl.maximum(high, tl.max(s, axis=1))
                if tl.max(new - high) > LAZY:
                    keep = tl.exp2(high - new)
                    total *= keep
                    kept = ()
                    for i in tl.static_range(0, CHUNKS):
                        kept = kept + (acc[i] * keep[:, None],)
                    acc = kept
                    high = new
                weights = tl.exp2(s - high[:, None])
                total += tl.sum(weights, axis=1)
            elif STATS == 'own':
                if not MANY:
                    high = tl.max(s, axis=1)
                weights = tl.exp2(s - high[:, None])
                if not MANY:
                    total = tl.sum(weights, axis=1)
                weights *= (1.0 / total)[:, None]
            elif STATS == 'col':
                lse = tl.load(lse_ptr + cols)
                weights = tl.exp2(s - lse[None, :])
            else:
                weights = tl.exp2(s - lse[:, None])
            if GRAD:
                dprob = scores(
                    g_chunks, g_ptr, g_rows, v_ptr, cols * v_r_stride, lo_stride,
                    C, BD, KEEP_G, X_PARTS, Y_PARTS, NATIVE, PRECISION,
                )  # fmt: skip
                if STATS == 'own delta' and not MANY:
                    delta = tl.sum(weights * dprob, axis=1)
                if STATS == 'col':
                    delta = tl.load(delta_ptr + cols)
                    weights *= dprob - delta[None, :]
                else:
                    weights *= dprob - delta[:, None]
                acc = add_values(
                    acc, weights, y_ptr, cols * y_r_stride, channel, lo_stride,
                    C, BD, CHUNKS, Y_PARTS, NATIVE, PRECISION, True,
                )  # fmt: skip
            else:
                acc = add_values(
                    acc, weights, v_ptr, cols * v_r_stride, channel, lo_stride, C, BD,
                    CHUNKS, 1 if STATS == 'own' else Y_PARTS, NATIVE, PRECISION,
                    STATS != 'own',
                )  # fmt: skip
        if STATS == 'own':
            tl.store(lse_ptr + rows, high + tl.log2(total), mask=stats_mask)
        if STATS == 'own delta':
            tl.store(delta_ptr + rows, delta, mask=stats_mask)
        y_ptr += S * C
        v_ptr += S * C
        if STATS != 'online':
            lse_ptr += stats
        if GRAD:
            delta_ptr += stats
    scale = tl.full([BR], out_scale, tl.float32)
    if STATS == 'online':
        scale = 1.0 / total
        tl.store(lse_ptr + rows, high + tl.log2(total), mask=stats_mask)
    for i in tl.static_range(0, CHUNKS):
        c = channel + i * BD + tl.arange(0, BD)
        value = (acc[i] * scale[:, None]).to(out_ptr.dtype.element_ty)
        mask = tl.broadcast_to(row_mask[:, None], [BR, BD])
        if C % (PARTS * CHUNKS * BD):
            mask = mask & (c < C)[None, :]
        tl.store(
            out_ptr + (rows * out_r_stride)[:, None] + c[None, :], value, mask=mask
        )


@kernel
def _attend_kernel(
    x_ptr, g_ptr, y_ptr, v_ptr, out_ptr, values_ptr, lse_ptr, delta_ptr,
    x_b_stride, x_r_stride, x_g_stride, g_b_stride, g_r_stride, g_g_stride,
    y_b_stride, y_r_stride, y_g_stride, v_b_stride, v_r_stride, v_g_stride,
    out_b_stride, out_r_stride, out_g_stride,
    B, R, S, row_tiles, splits, tiles_per_split, out_size, lo_stride, out_scale,
    C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CHUNKS: tl.constexpr, PARTS: tl.constexpr, KEEP: tl.constexpr, MANY: tl.constexpr,
    STATS: tl.constexpr, GRAD: tl.constexpr, NATIVE: tl.constexpr,
    PRECISION: tl.constexpr, X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr,
    KEEP_G: tl.constexpr, FOLDED: tl.constexpr, GROUPS: tl.constexpr,
    ROW_SEGMENTS: tl.constexpr, COL_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Write P V, or dT Y with GRAD, of this program's rows, columns and channels.

    STATS: where log-sum-exp and delta are from. 'own': rows of a segment are normalized
    here, and their log-sum-exp is written. 'own delta': delta is. 'row', 'col': they
    are read. 'online': as 'own' over the columns of the split.
    FOLDED: whether rows are landmarks, whose columns programs may split.
    """
    pid = tl.program_id(0)
    if values_ptr is None:
        attend(
            x_ptr, g_ptr, y_ptr, v_ptr, out_ptr, lse_ptr, delta_ptr,
            x_b_stride, x_r_stride, x_g_stride, g_b_stride, g_r_stride, g_g_stride,
            y_b_stride, y_r_stride, y_g_stride, v_b_stride, v_r_stride, v_g_stride,
            out_b_stride, out_r_stride, out_g_stride,
            pid, B, R, S, row_tiles, splits,
            tiles_per_split, out_size, lo_stride, out_scale, C, BR, BC, BD, CHUNKS,
            PARTS, KEEP, MANY, STATS, GRAD, NATIVE, PRECISION, X_PARTS, Y_PARTS, KEEP_G,
            FOLDED, GROUPS, ROW_SEGMENTS, COL_SEGMENTS,
        )  # fmt: skip
    elif pid % 2 == 0:
        attend(
            x_ptr, g_ptr, y_ptr, v_ptr, out_ptr, lse_ptr, delta_ptr,
            x_b_stride, x_r_stride, x_g_stride, g_b_stride, g_r_stride, g_g_stride,
            y_b_stride, y_r_stride, y_g_stride, v_b_stride, v_r_stride, v_g_stride,
            out_b_stride, out_r_stride, out_g_stride,
            pid // 2, B, R, S, row_tiles, splits,
            tiles_per_split, out_size, lo_stride, out_scale, C, BR, BC, BD, CHUNKS,
            PARTS, KEEP, MANY, STATS, True, NATIVE, PRECISION, X_PARTS, Y_PARTS, KEEP_G,
            FOLDED, GROUPS, ROW_SEGMENTS, COL_SEGMENTS,
        )  # fmt: skip
    else:
        attend(
            x_ptr, g_ptr, y_ptr, v_ptr, values_ptr, lse_ptr, delta_ptr,
            x_b_stride, x_r_stride, x_g_stride, g_b_stride, g_r_stride, g_g_stride,
            y_b_stride, y_r_stride, y_g_stride, v_b_stride, v_r_stride, v_g_stride,
            out_b_stride, out_r_stride, out_g_stride,
            pid // 2, B, R, S, row_tiles, splits,
            tiles_per_split, out_size, lo_stride, 1.0, C, BR, BC, BD, CHUNKS, PARTS,
            KEEP, MANY, STATS, False, NATIVE, PRECISION, X_PARTS, Y_PARTS, KEEP_G,
            FOLDED, GROUPS, ROW_SEGMENTS, COL_SEGMENTS,
        )  # fmt: skip
