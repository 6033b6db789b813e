"""What `op.py` asks of an operator's benchmark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

PASSES = ('forward', 'forward+backward')
Side = int | tuple[int, int]


def grid_of(side: Side) -> tuple[int, int]:
    """Height and width of a map."""
    return side if isinstance(side, tuple) else (side, side)


@dataclass(frozen=True)
class Case:
    """One method on one input.

    A module of this folder has `cases(side, batch, device, dtype) -> list[Case]`, all
    of the same problem on a square map; `SIDES`, those that are run by default; and
    `BASELINE`, the method that the others' `speedup` refers to. With `RECTANGLES` a
    side may be a height and a width.

    Args:
        method: name in the csv.
        call: the method.
        tensors: what `call` takes and is differentiated by.
        grad: gradient of the output.
        needs: bytes that it will hold at least, by pass, where that may be too much.
        same_as: method whose output and gradients must be the same.
        dft_flops: FLOPs of its Fourier transforms as products with dense DFT matrices,
            by pass, where a kernel may compute them so.
        exponentials: how many it takes at least, by pass, where they may bound it.
        columns: what else its rows say.
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

    def run(self, which: str) -> tuple[Tensor, ...]:
        """The output, or with 'forward+backward' the gradients too."""
        if which == 'forward':
            with torch.no_grad():
                return (self.call(*self.tensors),)
        out = self.call(*self.tensors)
        return out, *torch.autograd.grad(out, self.tensors, self.grad)

    def in_float64(self) -> 'Case':
        """The same inputs, and what comes of them, without rounding."""
        tensors = [x.detach().double().requires_grad_() for x in self.tensors]
        return replace(self, tensors=tensors, grad=self.grad.double())

    def least_bytes(self, which: str) -> int:
        """Inputs and output moved once; the backward reads its inputs again.

        It also reads the output's gradient and writes one for each input.
        """
        inputs = sum(x.numel() * x.element_size() for x in self.tensors)
        output = self.grad.numel() * self.grad.element_size()
        forward = inputs + output
        return forward if which == 'forward' else forward + 2 * inputs + output
