"""Run a backbone on one image while hooks read its modules."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from mmattn.errors import UserError


def check_one_image(image: Tensor):
    """Check that a batch holds one image, of shape (1, 3, H, W)."""
    if image.dim() != 4 or len(image) != 1:
        shape = tuple(image.shape)
        raise UserError(f'image must have shape (1, 3, H, W), got {shape}')


def run_with_hooks(run: Callable[[], object], hooks: Mapping[nn.Module, Callable]):
    """Run a model without `torch.compile`, with forward hooks on some modules."""
    with ExitStack() as stack:
        for module, hook in hooks.items():
            stack.callback(module.register_forward_hook(hook).remove)
        stack.enter_context(torch.compiler.set_stance('force_eager'))
        run()


def module_kinds(backbone: nn.Module) -> str:
    """Return the classes of a backbone's modules, for messages."""
    return ', '.join(sorted({type(module).__name__ for module in backbone.modules()}))
