import shutil
import signal

import pytest
from tool_runs import toys  # noqa: F401  a fixture


@pytest.fixture(autouse=True)
def plain_signal_handlers():
    """A test finds the handlers of a plain process, and no later one those it leaves.

    Python installs none where the shell ignores SIGINT, as it does for a job in the
    background of a script.
    """
    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    found = {number: signal.signal(number, plain[number]) for number in plain}
    yield
    for number, handler in found.items():
        signal.signal(number, handler)


@pytest.fixture
def here(toys, tmp_path, monkeypatch):  # noqa: F811
    """A copy of the toy data sets as the current folder."""
    shutil.copytree(toys / 'data', tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def logged(caplog):
    """The records of mmengine's logger."""
    from mmengine.logging import MMLogger

    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
