"""Check what the launcher tells of processes that fail."""

import json
import signal
import subprocess
import sys

import pytest
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)

from mmattn.cli.torchrun import failures_told


def test_a_killed_process_is_told_of_though_another_failed_first(tmp_path):
    error = {'message': 'RuntimeError: connection closed'}
    (tmp_path / 'error.json').write_text(
        json.dumps({'message': error | {'extraInfo': {'timestamp': '1'}}})
    )
    no_file = str(tmp_path / 'none')
    failures = {
        0: ProcessFailure(0, 10, 1, str(tmp_path / 'error.json')),
        1: ProcessFailure(1, 11, -signal.SIGKILL, no_file),
        2: ProcessFailure(2, 12, -signal.SIGTERM, no_file),
    }
    told = failures_told(ChildFailedError('train', failures)).splitlines()
    assert len(told) == 2 and 'connection closed' in told[0]
    assert told[1] == 'rank 1: Signal 9 (SIGKILL) received by PID 11'
    del failures[0]  # the killed one is the first now, and is reported once
    assert failures_told(ChildFailedError('train', failures)) == told[1]


FAIL = """
import sys
from mmattn.errors import UserError
from mmattn.cli.terminal import run_main

def main():
    if sys.argv[1] == 'user':
        raise UserError('arch must be tiny')
    len(3)

run_main(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'message', 'tracebacks'),
    [('user', 'fail: arch must be tiny', 0), ('program', "'int' has no len()", 1)],
)
def test_processes_that_fail_give_one_message(tmp_path, kind, message, tracebacks):
    (tmp_path / 'fail.py').write_text(FAIL)
    torchrun = sys.executable, '-m', 'mmattn.cli.torchrun', '--standalone'
    done = subprocess.run(
        [*torchrun, '--nproc_per_node=2', 'fail.py', kind],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = done.stdout
    assert done.returncode == 1, log[-4000:]
    told = log[log.index('\nrank ') :].strip()
    assert message in told and 'ChildFailedError' not in log
    assert log.count('Traceback') == tracebacks, log[-4000:]
    assert tracebacks or len(told.splitlines()) == 1, told
