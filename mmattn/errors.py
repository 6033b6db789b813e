"""Errors that tell a user what to correct; the commands print them in one line."""

from collections.abc import Collection
from importlib import import_module
from types import ModuleType


class UserError(ValueError):
    """A config, an argument or a file of the user is wrong.

    The message has what was given and what is accepted. It is a `ValueError`, so
    callers may catch that.
    """


class MissingPackageError(UserError, ImportError):
    """An optional package is not installed; the message says how to install it."""


def import_optional(message: str, *modules: str) -> ModuleType:
    """Import modules of optional packages, and return the last one.

    Raises:
        MissingPackageError: one is not installed; `message` says how to install it.
    """
    try:
        return [import_module(module) for module in modules][-1]
    except ImportError as error:
        raise MissingPackageError(message) from error


def check_choice(name: str, value, choices: Collection):
    """Raise a `UserError` if the value of a setting is none of the choices."""
    if value not in choices:
        raise UserError(f'{name} must be one of {[*choices]}, got {value!r}')
