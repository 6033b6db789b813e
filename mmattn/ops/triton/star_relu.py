"""StarReLU, `scale * relu(x)^2 + bias`, in Triton. All arithmetic is in fp32."""

import triton
import triton.language as tl

from .jit import kernel


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)  # NaN stays


@triton.jit
def block_of(start, N, BLOCK: tl.constexpr):
    """Return offsets of a block and which of them exist."""
    offsets = start + tl.arange(0, BLOCK)
    return offsets, offsets < N


@kernel
def _fwd_kernel(x_ptr, scale_ptr, bias_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets, mask = block_of(tl.program_id(0).to(tl.int64) * BLOCK, N, BLOCK)
    x = relu(tl.load(x_ptr + offsets, mask=mask).to(tl.float32))
    scale, bias = tl.load(scale_ptr).to(tl.float32), tl.load(bias_ptr).to(tl.float32)
    out = scale * x * x + bias
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


@kernel
def _bwd_kernel(
    x_ptr, grad_ptr, scale_ptr, dx_ptr, sums_ptr, N, blocks, BLOCK: tl.constexpr
):
    """Write dx, and a program's sums for the gradients of scale and bias."""
    first = tl.program_id(0).to(tl.int64) * blocks
    scale = 2 * tl.load(scale_ptr).to(tl.float32)
    dscale = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for block in range(blocks):
        offsets, mask = block_of((first + block) * BLOCK, N, BLOCK)
        x = relu(tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32))
        grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        product = x * grad
        dx = (scale * product).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offsets, dx, mask=mask)
        dscale += product * x
        dbias += grad
    sums_ptr += tl.program_id(0) * 2
    tl.store(sums_ptr, tl.sum(dscale))
    tl.store(sums_ptr + 1, tl.sum(dbias))
