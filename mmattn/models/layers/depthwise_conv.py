"""Depthwise convolution of a channels-last grid."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from mmattn.ops.common.derivatives import is_transformed, needs_reference
from mmattn.ops.common.precision import (
    cast_under_autocast,
    is_autocast_on,
    without_autocast,
)

LARGE_KERNEL = 5  # oneDNN computes the gradients of smaller ones fast
MAX_PIXELS_OF_KERNEL = 600  # larger gradients are slow kernels


class DepthwiseConv(nn.Conv2d):
    """Depthwise convolution with zero padding; shape (B, H, W, C) in and out.

    On a CPU, in float32 and bfloat16, the gradients of kernels of 5 x 5 or more are
    composed of convolutions that oneDNN has fast code for.

    Args:
        embed_dims: channels C.
        kernel_size: side K of the kernels, odd.
        bias: whether channels have a bias.
        residual: whether to add the input to the result. In float32 on a CPU the
            kernels' centers are one larger instead, which saves passes over the map.
    """

    def __init__(
        self,
        embed_dims: int,
        kernel_size: int,
        *,
        bias: bool = True,
        residual: bool = False,
    ):
        super().__init__(
            embed_dims,
            embed_dims,
            kernel_size,
            padding=kernel_size // 2,
            groups=embed_dims,
            bias=bias,
        )
        self.residual = residual

    def forward(self, x: Tensor, padded: bool = False) -> Tensor:
        """Convolve a map (B, H, W, C).

        Args:
            x: the map.
            padded: whether K // 2 rows above and below are the map's padding, without
                which it is returned.
        """
        weight = self.weight
        # Elsewhere a convolution may round the input: to half precision, or to TF32.
        exact = x.dtype == weight.dtype == torch.float32 and x.device.type == 'cpu'
        if self.residual and exact and not is_autocast_on('cpu'):
            one = weight.new_ones(1, 1, 1, 1)
            weight = weight + F.pad(one, (self.padding[0],) * 4)
            return depthwise_conv2d(x, weight, self.bias, padded)
        out = depthwise_conv2d(x, weight, self.bias, padded)
        if padded:
            x = x.narrow(1, self.padding[0], out.shape[1])
        return x + out if self.residual else out


def depthwise_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padded: bool = False
) -> Tensor:
    """Convolve each channel with its kernel, padding with zeros; see `DepthwiseConv`.

    Args:
        x: shape (B, H, W, C).
        weight: shape (C, 1, K, K), with an odd K if the size of the grid is to stay.
        bias: shape (C,), or None.
        padded: see `DepthwiseConv.forward`.
    """
    if padded or not _has_slow_gradients(x, weight, bias):
        return _convolve(x, weight, bias, padded)
    x, weight, bias = cast_under_autocast(x, weight, bias)
    with without_autocast(x):
        return _LargeDepthwiseConv.apply(x, weight, bias)


def _has_slow_gradients(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    K, dtype = weight.shape[-1], x.dtype
    if is_autocast_on(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    elif weight.dtype != dtype:
        return False
    return (
        K >= LARGE_KERNEL
        and K % 2 == 1
        and x.device.type == 'cpu'
        and dtype in (torch.float32, torch.bfloat16)
        and x.numel() > 0
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not is_transformed()
        and not needs_reference(x, weight, bias)
    )


class _LargeDepthwiseConv(torch.autograd.Function):
    """Depthwise convolution with stride 1 that keeps the size of the grid."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None):
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _convolve(grad, weight.flip(2, 3))
        if ctx.needs_input_grad[1]:
            dweight = _weight_gradient(x, grad, weight.shape[-1])
        if ctx.needs_input_grad[2]:
            dbias = grad.sum((0, 1, 2))
        return dx, dweight, dbias


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padded: bool = False
) -> Tensor:
    pad = weight.shape[-1] // 2
    out = F.conv2d(
        x.permute(0, 3, 1, 2),
        weight,
        bias,
        padding=(0 if padded else pad, pad),
        groups=len(weight),
    )
    return out.permute(0, 2, 3, 1)


def _weight_gradient(x: Tensor, grad: Tensor, kernel_size: int) -> Tensor:
    """Return the gradient of the weight, shape (C, 1, K, K).

    oneDNN's own for such kernels computes all pairs of 8 or 16 channels.
    """
    B, H, W, C = x.shape
    pad = kernel_size // 2
    if H * W <= MAX_PIXELS_OF_KERNEL:
        # Images become channels, and each map of gradients is the kernel of its map.
        images = x.permute(1, 2, 0, 3).reshape(1, H, W, B * C)
        kernels = grad.permute(0, 3, 1, 2).reshape(B * C, 1, H, W)
        maps = F.conv2d(
            images.permute(0, 3, 1, 2),
            kernels,
            padding=pad,
            groups=B * C,
        )
        return maps.view(B, C, 1, kernel_size, kernel_size).sum(0)
    # Strips of three columns are narrow enough for the code of small kernels.
    padded, strips = F.pad(x, (0, 0, pad, pad, pad, pad)), []
    for first in range(0, kernel_size, 3):
        width = min(3, kernel_size - first)
        strip = conv2d_weight(
            padded[:, :, first : first + W + width - 1].permute(0, 3, 1, 2),
            (C, 1, kernel_size, width),
            grad.permute(0, 3, 1, 2),
            groups=C,
        )
        strips.append(strip)
    return torch.cat(strips, -1)
