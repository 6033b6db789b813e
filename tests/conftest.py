import sys
from types import SimpleNamespace

import pytest

import mmattn  # noqa: F401  before any mm package, as each test file may be run alone


def _forget(kind: type):
    kind._instance_dict.clear()
    for subclass in kind.__subclasses__():
        _forget(subclass)


@pytest.fixture(scope='session')
def forget_instances():
    """Drops the visualizers, loggers and the like that mmengine keeps by name.

    A run after another in one process would write into the folder of the first.
    """
    from mmengine.utils import ManagerMixin

    return lambda: _forget(ManagerMixin)


@pytest.fixture(autouse=True)
def no_default_scope():
    """mmengine's default scope outlives its runner; no test inherits one."""
    yield
    if 'mmengine.registry' in sys.modules:
        sys.modules['mmengine.registry'].DefaultScope._instance_dict.clear()


@pytest.fixture(autouse=True)
def no_collection_for_each_data_set():
    """mmengine collects garbage for each, among all that the packages have loaded."""
    if module := sys.modules.get('mmengine.dataset.base_dataset'):
        module.gc = SimpleNamespace(collect=lambda: 0)
