"""The interface of an operator's benchmark, which `op.py` runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

PASSES = ('forward', 'forward+backward')
Side = int | tuple[int, int]


def grid_of(side: Side) -> tuple[int, int]:
    """Return the height and width of a map."""
    return side if isinstance(side, tuple) else (side, side)


@dataclass(frozen=True)
class Case:
    """Describe one method on one input.

    A module of this folder has `cases(side, batch, device, dtype) -> list[Case]`, which
    returns cases of one problem on a square map. `SIDES` are the sides of a default
    run, and `BASELINE` is the method that the others' `speedup` refers to. With
    `RECTANGLES` a side may be a height and a width.

    Args:
        method: name in the csv.
        call: the method.
        tensors: arguments of `call`, which it is differentiated by.
        grad: gradient of the output.
        needs: least bytes that it holds, by pass, where they may be too many.
        same_as: method whose output and gradients must be equal.
        dft_flops: FLOPs of its Fourier transforms as products with dense DFT matrices,
            by pass, where a kernel may compute them so.
        exponentials: least number of exponentials, by pass, where they may bound it.
        columns: further columns of its rows.
        passes: the passes that it supports.
        compiled: whether it needs a compiler, on the CPU that of C++.
    """

    method: str
    call: Callable[..., Tensor]
    tensors: list[Tensor]
    grad: Tensor
    needs: Mapping[str, int] = field(default_factory=dict)
    same_as: str | None = None
    dft_flops: Mapping[str, int] = field(default_factory=dict)
    exponentials: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, float] = field(default_factory=dict)
    passes: tuple[str, ...] = PASSES
    compiled: bool = False

    def run(self, which: str) -> tuple[Tensor, ...]:
        """Return the output, and with 'forward+backward' the gradients."""
        if which == 'forward':
            with torch.no_grad():
                return (self.call(*self.tensors),)
        out = self.call(*self.tensors)
        return out, *torch.autograd.grad(out, self.tensors, self.grad)

    def in_float64(self) -> 'Case':
        """Return the case in float64."""
        tensors = [x.detach().double().requires_grad_() for x in self.tensors]
        return replace(self, tensors=tensors, grad=self.grad.double())

    def least_bytes(self, which: str) -> int:
        """Return the bytes of moving inputs and output once.

        The backward reads its inputs again and the output's gradient, and writes a
        gradient for each input.
        """
        inputs = sum(x.numel() * x.element_size() for x in self.tensors)
        output = self.grad.numel() * self.grad.element_size()
        forward = inputs + output
        return forward if which == 'forward' else forward + 2 * inputs + output
