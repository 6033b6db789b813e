"""Cache of the spectra of a layer's kernels, for evaluation."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mmattn.errors import UserError


class SpectrumCache:
    """Spectra of a layer's kernels for the grids seen last; copies start empty.

    Kernels are recognized by their storage and version counter and, on a CPU, by value.
    The counter misses writes through `.data`, by which mmengine's EMA hook, for
    example, swaps weights.
    """

    def __init__(self, size: int):
        if size < 0:
            raise UserError(f'cache_size must be at least 0, got {size}')
        self.size = size
        self._lock = threading.Lock()  # several threads may run one model
        self.clear()

    def __reduce__(self):
        return type(self), (self.size,)

    def __len__(self):
        return len(self.spectra)

    def clear(self):
        self.sources: list[tuple[Tensor, int, Tensor | None]] = []
        self.spectra: OrderedDict[tuple[int, ...], tuple[Tensor, ...]] = OrderedDict()

    def get(self, kernels: Sequence[Tensor], grid: tuple[int, ...], make: Callable):
        """Return `make(kernels, grid)`, from the cache if the kernels are the same."""
        if not self.size:
            return make(kernels, grid)
        with self._lock:
            if not self._know(kernels):
                self.clear()
                self.sources = [
                    # The alias keeps the storage alive, so its address is not reused.
                    (w.detach(), w._version, w.detach().clone() if w.is_cpu else None)
                    for w in kernels
                ]
            if grid not in self.spectra:
                self.spectra[grid] = make(kernels, grid)
            self.spectra.move_to_end(grid)
            if len(self.spectra) > self.size:
                self.spectra.popitem(last=False)
            return self.spectra[grid]

    def _know(self, kernels: Sequence[Tensor]) -> bool:
        return len(self.sources) == len(kernels) and all(
            alias.data_ptr() == w.data_ptr()
            and alias.dtype == w.dtype
            and alias.device == w.device
            and version == w._version
            and (copy is None or torch.equal(copy, w))
            for (alias, version, copy), w in zip(self.sources, kernels, strict=True)
        )


def may_keep(kernels: Sequence[Tensor]) -> bool:
    """Return whether spectra made now may be used later.

    They may not if gradients are recorded; if a call is compiled, exported, traced or
    captured in a CUDA graph, which would keep them forever; or if a kernel is not a
    parameter or has no version counter.
    """
    recorded = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
    )
    return not (recorded or torch.is_grad_enabled()) and all(
        type(w) is nn.Parameter and not w.is_inference() for w in kernels
    )
