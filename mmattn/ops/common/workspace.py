"""Memory that backends reuse from call to call.

Small maps are computed in less time than the operating system takes to hand out their
memory, which it clears page by page.
"""

import math
import threading

import torch
from torch import Tensor

KEPT_ELEMENTS = 1 << 19  # of a tensor: 2 MiB in float32


class _Memory(threading.local):
    def __init__(self):
        self.tensors = {}


_memory = _Memory()


def scratch(
    name: str, *shape: int, like: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return an uninitialized tensor in the memory that last had this name.

    Each thread has its own memory and keeps it until the thread ends. Tensors of more
    than `KEPT_ELEMENTS`, and those on other devices than the CPU, are allocated at each
    call. Nothing that an operator returns may lie in this memory.

    Args:
        name: name of the memory.
        shape: shape of the tensor.
        like: tensor of its device, and of its dtype unless `dtype` is given.
        dtype: dtype of the tensor.
    """
    size, dtype = math.prod(shape), dtype or like.dtype
    if size > KEPT_ELEMENTS or not like.is_cpu:
        return torch.empty(shape, dtype=dtype, device=like.device)
    kept = _memory.tensors.get((name, dtype))
    if kept is None or len(kept) < size:
        with torch.inference_mode(False):  # its tensors could not be written outside it
            kept = _memory.tensors[name, dtype] = torch.empty(size, dtype=dtype)
    return kept[:size].view(shape)


def heads_first(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (B, N, M, D) as (B * M, N, D), in this memory unless a view will do."""
    B, N, M, D = x.shape
    if B == 1 and x.dtype == dtype and x.stride(3) == 1:
        return x[0].transpose(0, 1)
    out = scratch(name, B, M, N, D, like=x, dtype=dtype)
    return out.copy_(x.transpose(1, 2)).flatten(0, 1)


def product(name: str, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """Multiply (n, r, D) by (n, D, s) and a number, in this memory."""
    out = scratch(name, len(x), x.shape[1], y.shape[2], like=x)
    return torch.baddbmm(out, x, y, beta=0, alpha=scale, out=out)
