"""Our operators in the operators of PyTorch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..ops.autograd import DECOMPOSITIONS


def adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Average over bins as `F.adaptive_avg_pool2d` does, by two matrix products.

    Args:
        x: shape (..., H, W); the sides may be symbols.
        output_size: numbers of bins (h, w).
    """
    rows, columns = (
        _bins(side, count, x)
        for side, count in zip(x.shape[-2:], output_size, strict=True)
    )
    return rows @ (x @ columns.mT)  # (..., h, w)


def _bins(side: int, count: int, like: Tensor) -> Tensor:
    """Return the weight of each pixel in each of `count` bins, shape (count, side)."""
    i = torch.arange(count, device=like.device)[:, None]
    start = torch.div(i * side, count, rounding_mode='trunc')
    end = torch.div((i + 1) * side + count - 1, count, rounding_mode='trunc')
    pixel = torch.arange(side, device=like.device)
    inside = (pixel >= start) & (pixel < end)
    return inside.to(like.dtype) / (end - start).to(like.dtype)


# PyTorch's own decomposition does not support symbolic sizes.
ADAPTIVE_POOL = {torch.ops.aten._adaptive_avg_pool2d.default: adaptive_avg_pool2d}


def decompositions() -> dict[torch._ops.OperatorBase, Callable]:
    """Return PyTorch's default decompositions and those of our operators.

    The ONNX exporter finds ours by itself.

    Example:
        >>> import torch
        >>> import mmattn.export
        >>> from mmattn.models import IViT
        >>> image = torch.randn(1, 3, 64, 64)
        >>> program = torch.export.export(IViT('nano').eval(), (image,))
        >>> program = program.run_decompositions(mmattn.export.decompositions())
        >>> any('mmattn' in str(node.target) for node in program.graph.nodes)
        False
    """
    return torch.export.default_decompositions() | DECOMPOSITIONS | ADAPTIVE_POOL
