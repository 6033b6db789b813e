"""Run torchrun, and print one message where processes fail; `dist_*.sh` start it.

torchrun itself ends with a traceback of its own, after a message of each process.
"""

import os
import signal
import sys

from .terminal import ONE_ERROR


def main():
    """Run torchrun with the arguments of the command line."""
    os.environ[ONE_ERROR] = '1'  # for the processes
    # torchrun's loggers read it while they are imported. What they tell of a failure,
    # the message below tells, too.
    level = os.environ.get('LOGLEVEL')
    os.environ['LOGLEVEL'] = level or 'CRITICAL'
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main as torchrun

    if level is None:
        del os.environ['LOGLEVEL']
    try:
        torchrun()
    except ChildFailedError as error:
        print(failures_told(error), file=sys.stderr)
        sys.exit(max(error.get_first_failure()[1].exitcode, 1))
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except RendezvousError as error:
        sys.exit(f'the machines did not meet: {error}. Check MASTER_ADDR and PORT')


def failures_told(error) -> str:
    """Return a line for the first process that failed, and for each that was killed.

    A process that waits for a killed one may fail before torchrun looks, and does not
    know why. torchrun itself ends the others by SIGTERM.
    """
    first, _ = error.get_first_failure()
    others = [
        rank
        for rank, failure in error.failures.items()
        if rank != first
        and failure.exitcode < 0
        and failure.exitcode != -signal.SIGTERM
    ]
    return '\n'.join(
        f'rank {rank}: {told(error.failures[rank])}' for rank in (first, *others)
    )


def told(failure) -> str:
    """Return what a failed process has told: a message, a traceback or a signal."""
    content = failure.error_file_data.get('message', {})
    if isinstance(content, dict) and 'message' in content:
        kind, _, message = content['message'].partition(': ')
        if kind in ('UserError', 'DataError'):
            return message
        return content.get('extraInfo', {}).get('py_callstack') or content['message']
    if failure.exitcode < 0:
        return failure.message
    return f'ended with the exit code {failure.exitcode}'


if __name__ == '__main__':
    main()
