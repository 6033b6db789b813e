"""Discrete Fourier transforms of small grids in Triton, as products with matrices.

A tile has T blocks of rows and columns side by side. They hold reals, or half-spectra
whose columns are real and imaginary parts in turn. A block has UH x UW items, each in a
corner with sides that are powers of two. Small grids so share the 16 rows and columns
that a product of matrices requires, and the matrices have a block per item on the
diagonal.

`dft_ptr` holds cos and sin (HP, HP), the matrix from columns to half-spectrum (WP, CW),
and that from half-spectrum to columns (CW, WP), rounded to TF32. With PRECISION
'tf32x3' what the rounding left follows, and products have nearly the precision of fp32.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.tf32 import round_operand


@triton.jit
def turn_parts(n, side):
    """Return cosine and sine of n of `side` parts of a turn, 0 <= n < side.

    Taylor series on an eighth of a turn are exact to a rounding. `tl.cos` would keep
    local memory for large angles.
    """
    quarter = (8 * n + side) // (2 * side)
    x = (4 * n - quarter * side).to(tl.float32) / side * 1.5707963267948966
    xx = x * x
    sine = 1 / 5040 - xx * (1 / 362880)
    sine = x - x * xx * (1 / 6 - xx * (1 / 120 - xx * sine))
    cosine = 1 / 720 - xx * (1 / 40320 - xx * (1 / 3628800))
    cosine = 1 - xx * (1 / 2 - xx * (1 / 24 - xx * cosine))
    is_odd = quarter % 2 == 1
    a, b = tl.where(is_odd, sine, cosine), tl.where(is_odd, cosine, sine)
    cosine = tl.where((quarter == 1) | (quarter == 2), -a, a)
    return cosine, tl.where((quarter == 2) | (quarter == 3), -b, b)


@kernel
def _dft_kernel(
    dft_ptr, size, H, W, HP, WP, CW, UH, UW, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the matrices that the head of this file describes, `size` numbers twice."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_height, j = i < 2 * HP * HP, i - 2 * HP * HP
    is_sine, is_back = i >= HP * HP, j >= WP * CW
    j = tl.where(is_back, j - WP * CW, j)
    rows = tl.where(is_height, i // HP % HP, tl.where(is_back, j % WP, j // CW))
    columns = tl.where(is_height, i % HP, tl.where(is_back, j // WP, j % CW))
    # Items, and places in theirs.
    height, width, spectrum = HP // UH, WP // UW, CW // UW
    r, c = tl.where(is_height, height, width), tl.where(is_height, height, spectrum)
    exists, r, c = rows // r == columns // c, rows % r, columns % c
    side = tl.where(is_height, H, W)
    exists &= (r < side) & (c < tl.where(is_height, H, 2 * (W // 2 + 1)))
    f = tl.where(is_height, c, c // 2)
    cosine, sine = turn_parts(r * f % side, side)
    at_height = tl.where(is_sine, sine, cosine)
    at_width = tl.where(c % 2 == 1, -sine, cosine)
    # A frequency that is not its own mirror stands for two of the whole spectrum.
    count = tl.where((f == 0) | (2 * f == W), 1.0, 2.0)
    at_width = tl.where(is_back, at_width * (count / (H * W)), at_width)
    x = tl.where(exists, tl.where(is_height, at_height, at_width), 0.0)
    high = round_operand(x, 'tf32')
    tl.store(dft_ptr + i, high, mask=i < size)
    tl.store(dft_ptr + size + i, x - high, mask=i < size)


@triton.jit
def spectral_places(
    first, num_items, h0, c0, H, W,
    T: tl.constexpr, BH: tl.constexpr, HB: tl.constexpr, CP: tl.constexpr,
    CB: tl.constexpr, UH: tl.constexpr,
):  # fmt: skip
    """Return item, offset in its half-spectrum and mask of numbers, [BH, T * CP]."""
    row = h0 + tl.arange(0, BH)[:, None]
    column = tl.arange(0, T * CP)[None, :]
    width = 2 * (W // 2 + 1)
    h, c = row % HB, c0 + column % CB
    item = first + column // CB * UH + row // HB
    mask = (h < H) & (c < width) & (item < num_items)
    return item, h * width + c, mask


@triton.jit
def grid_places(
    first, num_items, h0, H, W,
    T: tl.constexpr, BH: tl.constexpr, HB: tl.constexpr, WP: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr,
):  # fmt: skip
    """Return item, offset in its grid and mask of numbers, [T * BH, WP]."""
    WB: tl.constexpr = WP // UW
    row = tl.arange(0, T * BH)[:, None]
    column = tl.arange(0, WP)[None, :]
    place = h0 + row % BH
    h, w = place % HB, column % WB
    item = first + (row // BH * UW + column // WB) * UH + place // HB
    mask = (h < H) & (w < W) & (item < num_items)
    return item, h * W + w, mask


@triton.jit
def split_complex(x):
    """Split [R, 2 C] numbers into real and imaginary parts, [R, C] each."""
    return tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))


@triton.jit
def join_complex(re, im):
    return tl.reshape(tl.join(re, im), [re.shape[0], re.shape[1] * 2])


@triton.jit
def multiply(x, y, CONJUGATE: tl.constexpr):
    """Multiply x, or its conjugate, by y, as complex numbers."""
    x_re, x_im = split_complex(x)
    y_re, y_im = split_complex(y)
    if CONJUGATE:
        x_im = -x_im
    return join_complex(x_re * y_re - x_im * y_im, x_re * y_im + x_im * y_re)


@triton.jit
def add_product(
    acc, x, high, ptr, stride, low, LEFT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the product of x with a part of a matrix, which is on its left or right.

    `high` is x rounded to TF32, and `low` the offset of what rounding left of matrices.
    """
    ptr += tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]
    matrix = tl.load(ptr)
    if PRECISION == 'tf32x3':
        acc = add_dot(acc, x - high, matrix, LEFT)
        acc = add_dot(acc, high, tl.load(ptr + low), LEFT)
    return add_dot(acc, high, matrix, LEFT)


@triton.jit
def add_dot(acc, x, matrix, LEFT: tl.constexpr):
    if LEFT:
        acc = tl.dot(matrix, x, acc, input_precision='tf32')
    else:
        acc = tl.dot(x, matrix, acc, input_precision='tf32')
    return acc


@triton.jit
def turn(z, INVERSE: tl.constexpr):
    """Return i z where INVERSE, otherwise -i z."""
    re, im = split_complex(z)
    # The compiler fails on a product of a tensor that comes right from a reshape.
    negative: tl.constexpr = 0 if INVERSE else 1
    part = tl.arange(0, z.shape[1]) % 2
    return join_complex(im, re) * tl.where(part == negative, -1.0, 1.0)[None, :]


@triton.jit
def add_columns_transform(
    acc, z, dft_ptr, low, r0, h0, INVERSE: tl.constexpr, HP: tl.constexpr,
    RP: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what rows [h0, h0 + BH) contribute to rows [r0, r0 + RP) along the height."""
    high = round_operand(z, 'tf32')
    dft_ptr += r0 * HP + h0
    acc = add_product(acc, z, high, dft_ptr, HP, low, True, RP, BH, PRECISION)
    z, high = turn(z, INVERSE), turn(high, INVERSE)
    dft_ptr += HP * HP
    return add_product(acc, z, high, dft_ptr, HP, low, True, RP, BH, PRECISION)


@triton.jit
def to_columns(
    x, dft_ptr, low, c0, CW, HP: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Transform rows of x [R, WP] to columns [c0, c0 + CP) of half-spectra."""
    acc = tl.zeros([x.shape[0], CP], tl.float32)
    high = round_operand(x, 'tf32')
    dft_ptr += 2 * HP * HP + c0
    return add_product(acc, x, high, dft_ptr, CW, low, False, WP, CP, PRECISION)


@triton.jit
def blocks_below(x, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Reshape [ROWS, T * COLUMNS] to [T * ROWS, COLUMNS]."""
    if T > 1:
        x = tl.permute(tl.reshape(x, [ROWS, T, COLUMNS]), (1, 0, 2))
        x = tl.reshape(x, [T * ROWS, COLUMNS])
    return x


@triton.jit
def blocks_beside(x, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Reshape [T * ROWS, COLUMNS] to [ROWS, T * COLUMNS]."""
    if T > 1:
        x = tl.permute(tl.reshape(x, [T, ROWS, COLUMNS]), (1, 0, 2))
        x = tl.reshape(x, [ROWS, T * COLUMNS])
    return x
