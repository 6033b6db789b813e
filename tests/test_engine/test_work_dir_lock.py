"""Two trainings never share a work dir, and a killed one leaves it free."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip('mmengine')
from tiny_run import make_runner

HOLD = """
import os, sys, time
from mmattn.engine.work_dir_lock import locked_work_dir
with locked_work_dir(sys.argv[1]):
    worker = os.fork()  # as a loader's, which outlives a killed run
    if worker:
        print(worker, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the work dir, and the process id of its worker."""
    process = subprocess.Popen(
        [sys.executable, '-c', HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    worker = int(process.stdout.readline())
    yield process
    os.kill(worker, signal.SIGKILL)
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_held_work_dir_is_refused_until_its_run_is_killed(tmp_path, holder, capfd):
    runner = make_runner(tmp_path)
    place = f'process {holder.pid} on {socket.gethostname()} since 20'
    with pytest.raises(ValueError, match=f'of a training that runs, {place}'):
        runner.train()
    assert not [*tmp_path.glob('*.p*'), *tmp_path.glob('last_checkpoint')]
    holder.kill()
    holder.wait()
    runner.train()
    output = ''.join(capfd.readouterr())
    assert f'did not end by itself, {place}' in output
    assert (tmp_path / 'last_checkpoint').is_file()
    make_runner(tmp_path).train()  # the run before has ended by itself
    assert 'did not end by itself' not in ''.join(capfd.readouterr())


def test_a_run_that_fails_frees_its_work_dir(tmp_path, monkeypatch, capfd):
    runner = make_runner(tmp_path)
    monkeypatch.setattr(runner.model, 'train_step', lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.train()
    make_runner(tmp_path).train()
    assert 'did not end by itself' not in ''.join(capfd.readouterr())


def test_file_systems_without_locks_are_told_of(tmp_path, monkeypatch, capfd):
    def fail(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'lockf', fail)
    make_runner(tmp_path).train()
    output = ''.join(capfd.readouterr())
    assert 'cannot be locked (No locks available): a second run' in output
