"""Decisions that differ while torch.export records a graph."""

from collections.abc import Sequence

import torch

# There `torch.compile` takes `is_exporting` for true, as strict exports do.
TRUE_IF_COMPILING = torch.__version__ < '2.14'


def is_exporting() -> bool:
    """Return whether torch.export records the call, also for the ONNX exporter.

    Before PyTorch 2.14 an export with `strict=True` counts as `torch.compile`.
    """
    if TRUE_IF_COMPILING and torch.compiler.is_dynamo_compiling():
        return False
    return torch.compiler.is_exporting()


def is_known(condition: bool | torch.SymBool) -> bool:
    """Return whether a condition on sizes holds, for all sizes of an exported graph.

    A graph for sizes of a range must not depend on a condition that holds for some of
    them. Elsewhere this is `bool`.
    """
    if isinstance(condition, bool) or not is_exporting():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def is_fixed(size: Sequence[int]) -> bool:
    """Return whether the graph being compiled is for one size alone."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(side < 1 << 62) for side in size)


def is_same_size(size: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two sizes are equal, for all sizes of an exported graph."""
    sides = zip(size, other, strict=True)
    return all(is_known(side == other_side) for side, other_side in sides)


def copied(x: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy in an exported graph, and x itself elsewhere.

    `scaled_dot_product_attention` with a bias that requires gradients changes its
    memory layout when the ONNX exporter decomposes it. A view of its output that was
    recorded before then fails.
    """
    return x.clone(memory_format=torch.contiguous_format) if is_exporting() else x
