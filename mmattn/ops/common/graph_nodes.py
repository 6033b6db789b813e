"""Functions of (x, weight, bias) that are one node in compiled graphs on a CPU.

Inductor lays out every four-dimensional tensor that leads to an `aten.convolution` as
if its axes were (B, C, H, W). Ours are (B, H, W, C), and copies would surround each
convolution. A node keeps the layout of its tensors, and chooses among kernels when it
runs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .derivatives import is_transformed, needs_reference
from .exporting import is_exporting
from .operator import LIBRARY, define


class GraphNode:
    """Register `torch.ops.mmattn.<name>` and its gradients.

    Args:
        name: the operator's name.
        settings: the arguments after (x, weight, bias), as in a schema.
        forward: returns the output, called as the operator.
        backward: called as `backward(grad, x, weight, *settings, needed)`, where
            `needed` has a bool for each of x, weight and bias. It returns their
            gradients, None where one is not needed.
        shape: returns the output's shape, called as `forward`.
    """

    def __init__(
        self,
        name: str,
        settings: str,
        forward: Callable[..., Tensor],
        backward: Callable[..., tuple[Tensor | None, ...]],
        shape: Callable[..., tuple[int, ...]],
    ):
        def run(*args) -> Tensor:
            return forward(*args).contiguous()

        def fake(x: Tensor, *args) -> Tensor:
            return x.new_empty(shape(x, *args))

        def grads(grad: Tensor, x: Tensor, *args) -> tuple[Tensor, ...]:
            found = backward(grad, x, *args)
            return tuple(
                x.new_empty(0) if dx is None else dx.contiguous() for dx in found
            )

        def fake_grads(grad: Tensor, x: Tensor, weight: Tensor, *args):
            shapes = x.shape, weight.shape, weight.shape[:1]
            pairs = zip(shapes, args[-1], strict=True)
            return tuple(x.new_empty(size if need else 0) for size, need in pairs)

        def save(ctx, inputs, output):
            x, weight, _, *ctx.settings = inputs
            ctx.save_for_backward(x, weight)

        def differentiate(ctx, grad: Tensor):
            needed = list(ctx.needs_input_grad[:3])
            found = self.backward(grad, *ctx.saved_tensors, *ctx.settings, needed)
            pairs = zip(found, needed, strict=True)
            found = [dx if need else None for dx, need in pairs]
            return *found, *[None] * len(ctx.settings)

        schema = f'(Tensor x, Tensor weight, Tensor? bias, {settings}) -> Tensor'
        define(name, schema, run, fake)
        schema = f'(Tensor grad, Tensor x, Tensor weight, {settings}, bool[] needed)'
        schema += ' -> (Tensor, Tensor, Tensor)'
        define(f'{name}_backward', schema, grads, fake_grads)
        torch.library.register_autograd(
            f'mmattn::{name}', differentiate, setup_context=save, lib=LIBRARY
        )
        self.forward = getattr(torch.ops.mmattn, name)
        self.backward = getattr(torch.ops.mmattn, f'{name}_backward')

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *settings):
        return self.forward(x, weight, bias, *settings)


def takes_nodes(*tensors: Tensor | None) -> bool:
    """Return whether a graph that is being compiled is for a CPU, to run or train."""
    return (
        not is_exporting()
        and tensors[0].device.type == 'cpu'
        and not is_transformed()
        and not needs_reference(*tensors)
    )
