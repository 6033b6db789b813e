"""Layers with wide hidden maps, computed by strips of a map that fit the cache.

PyTorch writes each hidden map of a large image to memory that it has just asked the
system for, and the next layer reads it from there. A strip's stays in the cache.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mmattn.ops.common.chunks import slices
from mmattn.ops.common.derivatives import runs_eagerly
from mmattn.ops.common.exporting import is_fixed
from mmattn.ops.common.graph_nodes import takes_nodes

from .depthwise_conv import DepthwiseConv

ELEMENTS = 1 << 21  # of a strip's hidden map: 8 MiB in float32


def pointwise_by_strips(
    function: Callable[[Tensor], Tensor], x: Tensor, hidden_dims: int
) -> Tensor:
    """Return `function(x)`, in inference on a CPU by some tokens at a time.

    Args:
        function: maps each token for itself, to as many channels.
        x: shape (..., C).
        hidden_dims: the most channels of a token inside.
    """
    parts = slices(x.shape[:-1].numel(), hidden_dims, ELEMENTS) if may_split(x) else []
    if len(parts) < 2:
        return function(x)
    tokens, out = x.flatten(0, -2), None
    for part in parts:
        strip = function(tokens[part])
        out = strip.new_empty(tokens.shape) if out is None else out
        out[part] = strip
    return out.view(x.shape)


def convolve_by_strips(
    before: Callable[[Tensor], Tensor],
    conv: DepthwiseConv,
    after: Callable[[Tensor], Tensor],
    x: Tensor,
) -> Tensor:
    """Return `after(conv(before(x)))`, in inference on a CPU by some rows at a time.

    Args:
        before: maps each pixel for itself, to the channels of `conv`.
        conv: convolution of the hidden map.
        after: maps each pixel for itself, to C channels.
        x: shape (B, H, W, C). Clips (B, T, H, W, C) are not split.
    """
    if x.dim() != 4 or not may_split(x):
        return after(conv(before(x)))
    B, H, W, _ = x.shape
    reach, row = conv.kernel_size[0] // 2, W * conv.in_channels
    if B * H * row <= ELEMENTS:
        return after(conv(before(x)))
    out = None
    for images in slices(B, H * row, ELEMENTS):
        count = images.stop - images.start
        parts = slices(H, count * row, ELEMENTS, minimum=max(1, 4 * reach))
        kept, first = None, 0
        for part in parts:
            # The rows that the last strip's convolution lacked lie before these.
            hidden = before(x[images, part])
            border = hidden.new_zeros(count, reach, W, conv.in_channels)
            maps = [border if kept is None else kept, hidden]
            maps = torch.cat([*maps, border] if part.stop == H else maps, 1)
            last = first + maps.shape[1] - 2 * reach
            strip = after(conv(maps, padded=True))
            out = strip.new_empty(x.shape) if out is None else out
            out[images, first:last] = strip
            kept, first = maps[:, maps.shape[1] - 2 * reach :], last
    return out


def may_split(x: Tensor) -> bool:
    """Return whether nobody records or transforms a call, on a CPU.

    A compiled graph has the strips of its size, and none where it serves all sizes.
    """
    if x.device.type != 'cpu' or torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling():
        return takes_nodes(x) and is_fixed(x.shape)
    return runs_eagerly()
