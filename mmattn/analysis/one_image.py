"""Run a backbone on one image while hooks read its modules."""

from collections.abc import Callable, Mapping, Sequence
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


def read_layers(
    model: nn.Module, kind: type, known: str, run: Callable, read: Callable
) -> list:
    """Run a model, and return what `read` returns for each call of a class of layers.

    Args:
        known: models that have such layers, for the error where this one has none.
        read: takes the name of a layer, the layer and its positional arguments.
    """
    names = {m: name for name, m in model.named_modules() if isinstance(m, kind)}
    if not names:
        raise UserError(
            f'{type(model).__name__} has no {kind.__name__}, as {known} have; its '
            f'modules are {module_kinds(model)}'
        )
    found = []

    def keep(layer: nn.Module, args: tuple, out):
        found.append(read(names[layer], layer, args))

    run_with_hooks(run, dict.fromkeys(names, keep))
    return found


def check_place(what: str, place: Sequence[float], size: Sequence[int]):
    """Raise a ValueError unless a place (y, x) is in an image of a size."""
    if not all(0 <= at < side for at, side in zip(place, size, strict=True)):
        raise UserError('{} {} is outside the {}x{} image'.format(what, place, *size))


def module_kinds(backbone: nn.Module) -> str:
    """Return the classes of a backbone's modules, for messages."""
    return ', '.join(sorted({type(module).__name__ for module in backbone.modules()}))
