"""Tests of settings that are refused."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(make: Callable, *cases: tuple[Any, str]) -> Callable:
    """Return a test that `make` raises ValueError with the message of each setting.

    A dict is passed by name, a tuple by position, and any other setting as it is.
    """

    @pytest.mark.parametrize('settings, message', cases, ids=[x for _, x in cases])
    def test(settings, message):
        args = settings if isinstance(settings, tuple) else (settings,)
        with pytest.raises(ValueError, match=message):
            make(**settings) if isinstance(settings, dict) else make(*args)

    return test
