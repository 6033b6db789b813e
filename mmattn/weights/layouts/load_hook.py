"""Conversion of weights while a module loads them."""

from collections.abc import Callable, Mapping
from functools import wraps

from torch import Tensor, nn


def load_hook(
    convert: Callable[[nn.Module, dict[str, Tensor]], Mapping[str, Tensor]],
) -> Callable:
    """Return a hook before loading that converts a module's part of a state dict.

    It is a decorator: the name of `convert` must be the hook's, since a pickled module
    refers to its hooks by name.

    Args:
        convert: a function of the module and its weights, with names relative to the
            module, that returns the weights to load instead.
    """

    @wraps(convert)
    def hook(module: nn.Module, state_dict: dict, prefix: str, *args):
        names = [name for name in state_dict if name.startswith(prefix)]
        weights = {name.removeprefix(prefix): state_dict[name] for name in names}
        converted = convert(module, weights)
        for name in names:
            del state_dict[name]
        for name, value in converted.items():
            state_dict[prefix + name] = value

    return hook
