"""A case of an operator's benchmark, and what the operators' modules share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmattn.ops.common.operator import OPERATORS
from tools.benchmark.inputs import setup

PASSES = ('forward', 'forward+backward')
MAPS = 4, 6  # of all pairs held at once, about, in the dtype of the output, by pass
Grid = tuple[int, int]  # height and width


def by_pass(counts: Sequence[int], size: int = 1) -> dict[str, int]:
    """Return a number of things of a size for each of `PASSES`."""
    return {which: n * size for which, n in zip(PASSES, counts, strict=True)}


@dataclass(frozen=True)
class Case:
    """Describe one method on one input.

    Args:
        method: name in the csv.
        call: the method.
        tensors: arguments of `call`, which it is differentiated by.
        grad: gradient of the output.
        pairs: number of pairs of a query and a key that it weighs, where all of them.
        holds_maps: whether it holds maps of all pairs.
        same_as: method whose output and gradients must be equal.
        dft_flops: FLOPs of its Fourier transforms as products with dense DFT matrices,
            by pass, where a kernel may compute them so.
        columns: further columns of its rows.
        passes: the passes that it supports.
        compiled: whether it needs a compiler, on the CPU a C++ compiler.
    """

    method: str
    call: Callable[..., Tensor]
    tensors: list[Tensor]
    grad: Tensor
    pairs: int = 0
    holds_maps: bool = False
    same_as: str | None = None
    dft_flops: Mapping[str, int] = field(default_factory=dict)
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

    def map_bytes(self, which: str) -> int:
        """Return about how many bytes of maps it holds at once."""
        size = self.holds_maps * self.grad.element_size()
        return size * by_pass(MAPS, self.pairs)[which]

    def least_bytes(self, which: str) -> int:
        """Return the bytes of moving inputs and output once.

        The backward reads its inputs again and the output's gradient, and writes a
        gradient for each input.
        """
        inputs = sum(x.numel() * x.element_size() for x in self.tensors)
        output = self.grad.numel() * self.grad.element_size()
        forward = inputs + output
        return forward if which == 'forward' else forward + 2 * inputs + output


def leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors, which get gradients from now on."""
    return [x.requires_grad_() for x in tensors]


def random_grad(shape: Sequence[int], device: str, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator).to(device, dtype)


def backends_of(name: str, *tensors: Tensor | None) -> list[str]:
    """Return the backends of an operator that support a call, fastest first."""
    operator = OPERATORS[name]
    rejected = operator.unsupported(*tensors)
    return [backend for backend in operator.backends if backend not in rejected]


def ours(name: str, **shape) -> list[Case]:
    """Return a case of each backend of an operator, then one of its definition.

    Args:
        name: the operator's name.
        shape: sizes and settings as `tools.benchmark.inputs.setup` takes them, and
            dtype and device.
    """
    attend, tensors = setup(name, **shape)
    definition = f'{name} (definition)'
    given = leaves(x for x in tensors if x is not None)
    grad = random_grad(given[0].shape, shape['device'], shape['dtype'])

    def on(backend):
        def call(*given):
            left = iter(given)
            filled = (None if x is None else next(left) for x in tensors)
            return attend(*filled, backend=backend)

        return call

    return [
        *(
            Case(f'{name} ({each})', on(each), given, grad, same_as=definition)
            for each in backends_of(name, *tensors)
        ),
        Case(definition, on('reference'), given, grad),
    ]
