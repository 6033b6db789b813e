"""Tests of settings that are refused."""

from collections.abc import Callable

import pytest


def refuses(make: Callable, *cases: tuple[dict, str]) -> Callable:
    """Return a test that `make` raises ValueError with the message of each setting."""

    @pytest.mark.parametrize('settings, message', cases, ids=str)
    def test(settings, message):
        with pytest.raises(ValueError, match=message):
            make(**settings)

    return test
