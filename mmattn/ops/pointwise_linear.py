"""A linear layer over the last axis, by the fastest matrix product."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .testing import with_grad


def pointwise_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear`, in float32 on a CPU as the equivalent 1x1 convolution.

    A token grid with its channels last has the memory layout of a channels_last image.
    oneDNN's convolution on it uses the widest vectors of any CPU, which the BLAS under
    `F.linear` may not use.

    Args:
        x: shape (..., C).
        weight: shape (C_out, C).
        bias: shape (C_out,), or None.

    Returns:
        Shape (..., C_out).
    """
    in_float32 = x.dtype == torch.float32 and not torch.is_autocast_enabled('cpu')
    if x.device.type != 'cpu' or not in_float32 or not x.numel():
        return F.linear(x, weight, bias)
    C = x.shape[-1]
    images = x.reshape(*_image_shape(x.numel() // C), C)
    out = F.conv2d(images.permute(0, 3, 1, 2), weight[:, :, None, None], bias)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def _image_shape(num_tokens: int) -> tuple[int, int, int]:
    """Return number, height and width of the images that tokens are laid out as.

    oneDNN with one thread requires at least 16 images. The backward of a single image
    is fast if it is a row, and not always if it is a column.
    """
    if torch.compiler.is_compiling():  # a changing size has no fixed divisor
        return 1, 1, num_tokens
    count = next((n for n in range(16, 33) if num_tokens % n == 0), None)
    return (1, 1, num_tokens) if count is None else (count, num_tokens // count, 1)


def example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `pointwise_linear`."""
    generator = torch.Generator().manual_seed(0)
    tensors = (
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape in ((2, 35, 8), (6, 8), (6,))
    )
    return with_grad(tensors, requires_grad), {}
