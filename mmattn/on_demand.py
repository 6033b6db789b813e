"""Names of packages that are imported when they are used."""

from collections.abc import Callable, Mapping
from importlib import import_module


def import_on_demand(package: str, homes: Mapping[str, str]) -> Callable:
    """Return a `__getattr__` for a package.

    Args:
        package: its name.
        homes: the modules of its names, relative to it, such as '.runner'.
    """

    def __getattr__(name: str):
        if name not in homes:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        return getattr(import_module(homes[name], package), name)

    return __getattr__
