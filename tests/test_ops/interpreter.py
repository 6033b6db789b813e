"""One process that interprets Triton's kernels for all tests of a session.

The interpreter has to be chosen before Triton is imported. Tests that are marked
`interpreted` therefore run in a second process, which collects the same files and runs
one test at a time, on request; conftest.py asks for them.

The fast tests interpret each kernel once, in `test_every_operator`, and execute what
the compiler makes of it, in `test_executed_kernels`.
"""

import functools
import multiprocessing
import os
import tempfile

import pytest

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
interpreted = pytest.mark.interpreted
slowly_interpreted = [interpreted, pytest.mark.slow]


class Server:
    """Run the collected tests whose names arrive, and answer with their outcomes."""

    def __init__(self, connection):
        self.connection, self.reports = connection, []

    def pytest_runtest_logreport(self, report):
        self.reports.append(report)

    def pytest_runtestloop(self, session):
        items = {item.nodeid: item for item in session.items}
        while name := self.connection.recv():
            self.reports.clear()
            session.ihook.pytest_runtest_protocol(item=items[name], nextitem=None)
            bad = [x for x in self.reports if not x.passed]
            outcome = (bad[0].outcome, bad[0].longreprtext) if bad else ('passed', '')
            self.connection.send(outcome)
        return True


def serve(connection, arguments: list[str], log: str):
    with open(log, 'w') as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        patch_language_once()
        pytest.main(arguments, plugins=[Server(connection)])


class Interpreter:
    """The process, which collects some files and runs until it is closed."""

    def __init__(self, files: list[str]):
        self.log = tempfile.mkstemp(prefix='mmattn_interpreter_')[1]
        self.connection, remote = multiprocessing.Pipe()
        context = multiprocessing.get_context('spawn')
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv('TRITON_INTERPRET', '1')
            patch.setenv('CUDA_VISIBLE_DEVICES', '')
            self.process = context.Process(
                target=serve, args=(remote, [*files, '-q'], self.log), daemon=True
            )
            self.process.start()
        remote.close()

    def run(self, name: str):
        """Fail or skip as a test does there."""
        try:
            self.connection.send(name)
            outcome, text = self.connection.recv()
        except (EOFError, OSError):
            with open(self.log) as file:
                pytest.fail(f'the interpreter is gone: {file.read()}', pytrace=False)
        if outcome == 'failed':
            pytest.fail(text, pytrace=False)
        if outcome == 'skipped':
            pytest.skip(text)

    def close(self):
        if self.process.is_alive():
            self.connection.send('')
            self.process.join()
        os.remove(self.log)


def patch_language_once():
    """Let Triton's interpreter patch its language once for each function.

    By default it does so at each call within a kernel, which takes a third of the time;
    only the first call changes anything.
    """
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang

    patch = functools.cache(_patch_lang)

    def call(self, *args, **kwargs):
        patch(self.fn)
        return self.rewrite()(*args, **kwargs)

    InterpretedFunction.__call__ = call
