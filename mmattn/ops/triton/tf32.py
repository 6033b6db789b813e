"""Products in Triton, and rounding of their operands to TF32."""

import triton
import triton.language as tl


@triton.jit
def round_operand(x, PRECISION: tl.constexpr):
    """Round x to the nearest TF32 number; tensor cores would truncate it."""
    if PRECISION == 'tf32':
        bits = x.to(tl.uint32, bitcast=True)
        rounded = ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
        x = tl.where(x == x, rounded, x)
    return x


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """Return x y, with x rounded to the dtype of y or to TF32."""
    x = x.to(y.dtype) if y.dtype != tl.float32 else round_operand(x, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)
