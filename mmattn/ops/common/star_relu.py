"""StarReLU and its gradients by one kernel, of the extension or of Triton.

`torch.ops.mmattn.star_relu(x, grad, scale, bias, out)` fills `out`, which may be x,
with `scale * relu(x)^2 + bias`, or with the gradient of x if `grad` is given. It
returns sums for the gradients of scale and bias, shape (parts, 2).
"""

import torch
from torch import Tensor

from ..triton import launch
from . import extension
from .derivatives import is_transformed
from .operator import define

PART = 1 << 16  # elements that a thread of a CPU takes at a time
BLOCK, TARGET_PROGRAMS = 1024, 8 * 132  # elements of a program on a GPU, and programs


def has_kernel(x: Tensor) -> bool:
    """Return whether a kernel supports a map."""
    if not x.is_contiguous() or is_transformed():
        return False
    if x.device.type == 'cpu' and extension.UNAVAILABLE is None:
        # Other types, such as fake tensors, have no values.
        return type(x) is Tensor and x.dtype in launch.DTYPES
    return launch.reason(x, x.shape[-1]) is None


def _run(x: Tensor, grad: Tensor | None, scale: Tensor, bias: Tensor, out: Tensor):
    if x.device.type == 'cpu' and extension.UNAVAILABLE is None:
        sums = torch.empty(x.numel() // PART + 1, 2)
        numbers = float(scale), float(bias)
        torch.ops.mmattn_extension.star_relu(x, grad, *numbers, out, sums)
        return sums
    from ..triton.star_relu import _bwd_kernel, _fwd_kernel

    N, blocks = x.numel(), launch.cdiv(x.numel(), BLOCK)
    options = dict(BLOCK=BLOCK, num_warps=4, **launch.COMPILER)
    programs, blocks_each = launch.split(blocks, 1, TARGET_PROGRAMS) if N else (0, 0)
    sums = launch.empty(x, 0 if grad is None else programs, 2)
    with torch.cuda.device_of(x):
        if N and grad is None:
            _fwd_kernel[blocks,](x, scale, bias, out, N, **options)
        elif N:
            _bwd_kernel[programs,](x, grad, scale, out, sums, N, blocks_each, **options)
    return sums


def _fake(x: Tensor, grad: Tensor | None, scale: Tensor, bias: Tensor, out: Tensor):
    return launch.empty(x, 1, 2)


define(
    'star_relu',
    '(Tensor x, Tensor? grad, Tensor scale, Tensor bias, Tensor(a!) out) -> Tensor',
    _run,
    _fake,
)
