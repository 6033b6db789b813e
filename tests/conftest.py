import sys

import pytest


@pytest.fixture(autouse=True)
def no_default_scope():
    """mmengine's default scope outlives its runner; no test inherits one."""
    yield
    if 'mmengine.registry' in sys.modules:
        sys.modules['mmengine.registry'].DefaultScope._instance_dict.clear()
