import shutil
import signal

import pytest


@pytest.fixture(autouse=True)
def no_signal_handlers():
    """A runner that is never trained keeps its handlers; no test inherits them."""
    numbers = signal.SIGINT, signal.SIGTERM
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope='session')
def toys(tmp_path_factory):
    from bad_data import make_toys

    folder = tmp_path_factory.mktemp('toys')
    make_toys(folder)
    return folder


@pytest.fixture
def here(toys, tmp_path, monkeypatch):
    """A copy of the toy data sets as the current folder."""
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
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
