"""Convolutions of channels-last grids, above all depthwise ones."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from mmattn.ops.common import extension
from mmattn.ops.common.derivatives import runs_eagerly
from mmattn.ops.common.graph_nodes import GraphNode, takes_nodes
from mmattn.ops.common.precision import (
    cast_layer,
    cast_under_autocast,
    is_autocast_on,
    without_autocast,
)

DTYPES = torch.float32, torch.bfloat16


class DepthwiseConv(nn.Conv2d):
    """Depthwise convolution with zero padding; shape (B, H, W, C) in and out.

    On a CPU, in float32 and bfloat16, the compiled extension computes the gradients of
    the kernels where it is installed, else oneDNN.

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
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padded: bool = False,
    *,
    stride: int = 1,
    padding: int | None = None,
) -> Tensor:
    """Convolve each channel with its kernel, padding with zeros; see `DepthwiseConv`.

    Args:
        x: shape (B, H, W, C).
        weight: shape (C, 1, K, K), with an odd K if the size of the grid is to stay.
        bias: shape (C,), or None.
        padded: see `DepthwiseConv.forward`.
        stride: step of the kernels.
        padding: zeros on each side, K // 2 if None.
    """
    padding = weight.shape[-1] // 2 if padding is None else padding
    trains = torch.is_grad_enabled() and not padded
    if not (trains and _has_compiled_gradient(x, weight, bias)):
        padding = (0, padding) if padded else padding
        return conv2d(x, weight, bias, stride, padding, len(weight))
    x, weight, bias = cast_under_autocast(x, weight, bias)
    with without_autocast(x):
        return _DepthwiseConv.apply(x, weight, bias, stride, padding)


def _has_compiled_gradient(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    dtype = x.dtype
    if is_autocast_on(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    elif weight.dtype != dtype:
        return False
    return _fits_extension(x, dtype) and runs_eagerly(x, weight, bias)


def _fits_extension(x: Tensor, dtype: torch.dtype) -> bool:
    return (
        extension.UNAVAILABLE is None
        and type(x) is Tensor  # others, such as fake tensors, have no values
        and x.device.type == 'cpu'
        and dtype in DTYPES
        and x.numel() > 0
    )


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int | tuple[int, int],
    groups: int = 1,
) -> Tensor:
    """Compute `F.conv2d` of (B, H, W, C), as one node of a graph compiled for a CPU."""
    if torch.compiler.is_compiling() and takes_nodes(x, weight, bias):
        x, weight, bias = cast_under_autocast(x, weight, bias)
        with without_autocast(x):
            sides = (padding, padding) if isinstance(padding, int) else padding
            return _NODE(x, weight, bias, stride, sides, groups)
    if x.is_cuda:
        x, weight, bias = cast_layer(x, weight, bias)
    return _convolve(x, weight, bias, stride, padding, groups)


class _DepthwiseConv(torch.autograd.Function):
    """Depthwise convolution whose backward avoids oneDNN's slow kernels."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, stride, padding):
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return _convolve(x, weight, bias, stride, padding, len(weight))

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _input_gradient(x, weight, grad, ctx.stride, ctx.padding)
        if any(ctx.needs_input_grad[1:3]):
            dweight, dbias = _weight_gradients(x, weight, grad, ctx.stride, ctx.padding)
        return dx, dweight, dbias if ctx.needs_input_grad[2] else None, None, None


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride, padding, groups):
    maps = x.permute(0, 3, 1, 2)
    out = F.conv2d(maps, weight, bias, stride, padding, groups=groups)
    return out.permute(0, 2, 3, 1)


def _input_gradient(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int):
    K = weight.shape[-1]
    if stride == 1 and padding < K:  # a convolution is faster than its transpose
        flipped = weight.flip(2, 3)
        return _convolve(grad, flipped, None, 1, K - 1 - padding, len(weight))
    rest = [
        side + 2 * padding - K - (out - 1) * stride
        for side, out in zip(x.shape[1:3], grad.shape[1:3], strict=True)
    ]
    dx = F.conv_transpose2d(  # slow in bfloat16
        grad.float().permute(0, 3, 1, 2),
        weight.float(),
        stride=stride,
        padding=padding,
        output_padding=rest,
        groups=len(weight),
    )
    return dx.permute(0, 2, 3, 1).to(x.dtype)


def _weight_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the kernels and of the bias."""
    if torch.is_grad_enabled():  # for second derivatives
        maps = (t.permute(0, 3, 1, 2) for t in (x, grad))
        dweight = conv2d_weight(
            next(maps), weight.shape, next(maps), stride, padding, groups=len(weight)
        )
        return dweight, grad.sum((0, 1, 2))
    C, _, K, _ = weight.shape
    sums = torch.zeros(K * K + 1, -(-C // 32) * 32)  # whole vectors
    x, grad = (t if t.stride(-1) == 1 else t.contiguous() for t in (x, grad))
    torch.ops.mmattn_extension.depthwise_weight_gradient(x, grad, stride, padding, sums)
    sums = sums[:, :C].to(x.dtype)
    return sums[:-1].t().reshape(weight.shape), sums[-1]


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride, padding, groups, needed
):
    """Return the gradients of x, weight and bias in a compiled graph."""
    is_depthwise = groups == len(weight) == x.shape[-1]
    is_even = padding[0] == padding[1]
    if not (is_depthwise and is_even and _fits_extension(x, x.dtype)):
        maps = (t.permute(0, 3, 1, 2) for t in (grad, x))
        sides = [stride] * 2, padding, [1, 1], False, [0, 0]
        dx, dweight, dbias = torch.ops.aten.convolution_backward(
            *maps, weight, [len(weight)], *sides, groups, needed
        )
        return dx.permute(0, 2, 3, 1) if needed[0] else None, dweight, dbias
    dx = dweight = dbias = None
    if needed[0]:
        dx = _input_gradient(x, weight, grad, stride, padding[0])
    if any(needed[1:]):
        dweight, dbias = _weight_gradients(x, weight, grad, stride, padding[0])
    return dx, dweight, dbias


def _shape(x: Tensor, weight: Tensor, bias, stride, padding, groups) -> tuple[int, ...]:
    K, sides = weight.shape[-1], zip(x.shape[1:3], padding, strict=True)
    sides = ((side + 2 * zeros - K) // stride + 1 for side, zeros in sides)
    return x.shape[0], *sides, len(weight)


_NODE = GraphNode(
    'grid_conv2d',
    'int stride, int[2] padding, int groups',
    _convolve,
    _gradients,
    _shape,
)
