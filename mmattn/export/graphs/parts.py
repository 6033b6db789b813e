"""Check the parts of a model that a graph repeats."""

from torch import nn

from ..errors import ExportError


def check_class(part: object, *accepted: type):
    """Raise an ExportError unless a part is of one of these classes.

    Subclasses are refused, since they may predict in another way.
    """
    if type(part) not in accepted:
        names = ', '.join(each.__name__ for each in accepted)
        package = accepted[0].__module__.partition('.')[0]
        raise ExportError(
            f'{type(part).__name__} cannot be exported; accepted are {names} of '
            f'{package}'
        )


def check_methods(part: nn.Module, base: type, *names: str):
    """Raise an ExportError unless a part inherits these methods from a class."""
    kind = type(part)
    if any(getattr(kind, name, None) is not getattr(base, name) for name in names):
        raise ExportError(
            f'{kind.__name__} cannot be exported, since it does not predict as '
            f'{base.__name__} of {base.__module__.partition(".")[0]} does'
        )
