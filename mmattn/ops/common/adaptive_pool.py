"""Average pooling to a map of a given size, also in exported graphs of any size."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .exporting import is_exporting


def adaptive_avg_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    """Return `F.adaptive_avg_pool2d` of a map whose channels come last.

    On a GPU its gradient is summed in no fixed order, which
    `torch.use_deterministic_algorithms` refuses. With that, bins of equal size are
    pooled by `F.avg_pool2d`, and others by a matrix product for each axis. Exported
    graphs have the products, too: the ONNX exporter would write the bins of the
    example's size, and read them at every other size.

    Args:
        x: shape (B, H, W, C); the sides may be symbols.
        size: numbers of bins (h, w).

    Returns:
        Shape (B, h, w, C).
    """
    if is_exporting():
        return _pool_by_products(x, size)
    if x.device.type != 'cpu' and torch.are_deterministic_algorithms_enabled():
        return pool_in_order(x, size)
    pooled = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), tuple(size))
    return pooled.permute(0, 2, 3, 1)


def pool_in_order(x: Tensor, size: Sequence[int]) -> Tensor:
    """Compute `adaptive_avg_pool` with a gradient that is deterministic on a GPU."""
    (H, W), (h, w) = x.shape[1:3], size
    if H % h or W % w:
        return _pool_by_products(x, size)
    pooled = F.avg_pool2d(x.permute(0, 3, 1, 2), (H // h, W // w))
    return pooled.permute(0, 2, 3, 1)


def _pool_by_products(x: Tensor, size: Sequence[int]) -> Tensor:
    B, H, W, C = x.shape
    (h, w), rows, columns = size, bins(H, size[0], x), bins(W, size[1], x)
    x = rows @ x.reshape(B, H, W * C)
    return (columns @ x.reshape(B * h, W, C)).reshape(B, h, w, C)


def adaptive_avg_pool2d_decomposition(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Return `F.adaptive_avg_pool2d` of (..., H, W) by two matrix products.

    One bin is the mean.
    """
    if list(output_size) == [1, 1]:
        return x.mean((-2, -1), keepdim=True)
    rows, columns = (
        bins(side, count, x)
        for side, count in zip(x.shape[-2:], output_size, strict=True)
    )
    return rows @ (x @ columns.mT)  # (..., h, w)


def bins(side: int, count: int, like: Tensor) -> Tensor:
    """Return the weight of each pixel in each of `count` bins, shape (count, side)."""
    i = torch.arange(count, device=like.device)[:, None]
    start = torch.div(i * side, count, rounding_mode='trunc')
    end = torch.div((i + 1) * side + count - 1, count, rounding_mode='trunc')
    pixel = torch.arange(side, device=like.device)
    is_inside = (pixel >= start) & (pixel < end)
    return is_inside.to(like.dtype) / (end - start).to(like.dtype)
