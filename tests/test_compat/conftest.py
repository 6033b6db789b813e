"""Fixtures for the tests of the operators that stand in for mmcv's compiled ones."""

import importlib
import pkgutil
from types import ModuleType

import pytest

from mmattn.compat import activate

activate()


@pytest.fixture
def our_ops(monkeypatch):
    """Makes `mmcv.ops` call our operators, also where mmcv was compiled."""
    from mmattn.compat.mmcv_ops import fill

    ours = ModuleType('mmcv._ext')
    fill(ours)
    package = importlib.import_module('mmcv.ops')
    for found in pkgutil.iter_modules(package.__path__, 'mmcv.ops.'):
        module = importlib.import_module(found.name)
        if hasattr(module, 'ext_module'):
            monkeypatch.setattr(module, 'ext_module', ours)
    return ours
