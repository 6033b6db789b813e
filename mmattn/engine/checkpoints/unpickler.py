"""`torch.load(weights_only=True)` with its own table of allowed globals.

PyTorch keeps one table for the whole process (`torch.serialization.safe_globals`).
Entries of another thread or of the host program would apply to our reads, and ours to
theirs. So this module makes a second instance of PyTorch's restricted unpickler, whose
table nothing else changes, and binds `torch.load` to it.
"""

from importlib.util import find_spec, module_from_spec
from types import FunctionType, ModuleType

import torch.serialization

from .allowed_globals import ALLOWED_GLOBALS, as_data

UNPICKLER = '_weights_only_unpickler'  # its name in torch and in torch.serialization


def _new_unpickler() -> ModuleType:
    """Execute PyTorch's unpickler module once more, and fill its table."""
    spec = find_spec(f'torch.{UNPICKLER}')
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module._add_safe_globals(ALLOWED_GLOBALS)
    return module


def _bound(function: FunctionType, namespace: dict) -> FunctionType:
    """Return `function` with `namespace` in place of its module's globals."""
    bound = FunctionType(
        function.__code__,
        namespace,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def _new_load() -> FunctionType:
    """Bind `torch.load`, and the one helper that compares unpicklers, to a new one."""
    namespace = {**vars(torch.serialization), UNPICKLER: _new_unpickler()}
    for name in ('_legacy_load', 'load'):
        namespace[name] = _bound(getattr(torch.serialization, name), namespace)
    return namespace['load']


_load = _new_load()


def load_data(file, map_location=None):
    """Return the tensors, containers, numbers and text in a `.pth` file.

    Args:
        file: path or binary stream.
        map_location: as for `torch.load`.

    Raises:
        pickle.UnpicklingError: the file asks for more than `allowed_globals` lists.
        Exception: the file is damaged. Any step may raise.
    """
    return as_data(_load(file, map_location, weights_only=True))
