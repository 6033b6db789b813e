"""How large a tensor some code makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Notes as `numel` the elements in memory of the largest result of an operation.

    A view has no more than it shows, an expanded or overlapping one no more than there
    are. Indices do not count.
    """

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
                continue
            if x.is_floating_point() or x.is_complex():
                stored = x.untyped_storage().nbytes() // x.element_size()
                self.numel = max(self.numel, min(x.numel(), stored))
        return out
