"""Maps that linear layers compute again in their backward, in place of keeping them.

Autograd keeps a layer's input for the gradient of the weight. Where that is the output
of a norm or of an activation, which keeps its own input, one of two maps is enough.

The output carries how it was made, as attributes. An argument of the layers would be
plainer, but adapters (LoRA), observers and hooks would take the norm's input for the
layer's.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .derivatives import runs_eagerly
from .precision import is_autocast_on, without_autocast


class Recipe(NamedTuple):
    """How to compute the output of a module again."""

    module: nn.Module
    names: tuple[str, ...]  # of its parameters
    autocast_dtype: torch.dtype | None

    def __call__(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """Return the output, as a part of the graph if gradients are on."""
        values = dict(zip(self.names, parameters, strict=True))
        context = without_autocast(x)
        if self.autocast_dtype is not None:
            context = torch.autocast(x.device.type, self.autocast_dtype)
        with context, torch.enable_grad():  # modules may overwrite x without gradients
            out = torch.func.functional_call(self.module, values, (x,))
        return out if torch.is_grad_enabled() else out.detach()


def recomputed(module: nn.Module, x: Tensor) -> Tensor:
    """Return `module(x)`, which `pointwise_linear` computes again in its backward.

    It must be given the very tensor. Other layers keep it, and compilers decide
    themselves what they keep.

    Args:
        module: a norm or an activation, which maps each pixel for itself and draws no
            random numbers.
        x: shape (..., C).
    """
    out = module(x)
    if out.requires_grad and type(out) is Tensor and runs_eagerly(x):
        parameters = dict(module.named_parameters())
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if is_autocast_on(kind) else None
        recipe = Recipe(module, tuple(parameters), dtype)
        out.source = recipe, x, *parameters.values()
        out.source_version = out._version
    return out


def source_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple:
    """Return what a layer, if gradients are on, may compute its input from again.

    Returns:
        A recipe and its arguments, or (None,) if the layer has to keep its input.
    """
    if (
        weight.requires_grad
        and type(weight) in (Tensor, nn.Parameter)
        and runs_eagerly(x, weight, bias)
        and getattr(x, 'source_version', None) == x._version
    ):
        return x.source
    return (None,)
