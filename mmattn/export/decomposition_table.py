"""Our operators in the operators of PyTorch."""

from collections.abc import Callable

import torch

from ..ops.common.adaptive_pool import adaptive_avg_pool2d_decomposition
from ..ops.common.operator import OPERATORS

# PyTorch's own decomposition does not support symbolic sizes. A table without the first
# operator keeps it, and the ONNX exporter then uses PyTorch's.
ADAPTIVE_POOL = dict.fromkeys(
    [
        torch.ops.aten.adaptive_avg_pool2d.default,
        torch.ops.aten._adaptive_avg_pool2d.default,
    ],
    adaptive_avg_pool2d_decomposition,
)


def decompositions() -> dict[torch._ops.OperatorBase, Callable]:
    """Return PyTorch's default decompositions and our operators'.

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
    ours = {
        operator.forward.default: operator.decompose for operator in OPERATORS.values()
    }
    return torch.export.default_decompositions() | ours | ADAPTIVE_POOL
