"""Return empty results for operators that are slow on the meta device.

PyTorch runs the definition of some operators in Python there, which takes a millisecond
a call. That was most of the time of counting a model.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _like(x: Tensor, *args) -> Tensor:
    return torch.empty_like(x)


def _layer_norm(x: Tensor, normalized_shape: Sequence[int], *args):
    count = len(normalized_shape)
    statistics = x.new_empty(*x.shape[: x.dim() - count], *(1,) * count)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return out, statistics, statistics


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def _resized(x: Tensor, size: Sequence[int], *args) -> Tensor:
    layout = torch.contiguous_format
    if x.is_contiguous(memory_format=torch.channels_last):
        layout = torch.channels_last
    return torch.empty(
        (*x.shape[:2], *size), dtype=x.dtype, device=x.device, memory_format=layout
    )


META_SHAPES: dict[Any, Callable] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.addmm.default: _addmm,
    aten.gelu.default: _like,
    aten.relu.default: _like,
    aten._safe_softmax.default: _like,
    aten.upsample_bicubic2d.default: _resized,
    aten.upsample_bilinear2d.default: _resized,
}
