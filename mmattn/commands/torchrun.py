"""Run torchrun, and print one message where processes fail; `dist_*.sh` start it.

torchrun itself ends with a traceback of its own, after a message of each process.
"""

import os
import signal
import sys

from ..terminal import ONE_ERROR


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
    """Return what the first process that failed has told.

    A killed process tells nothing, and another that waits for it may fail before
    torchrun looks. So whatever a signal has ended is told of, too, except SIGTERM, by
    which torchrun ends the others.
    """
    first, failure = error.get_first_failure()
    lines = [f'rank {first}: {told(failure)}']
    for rank, failure in error.failures.items():
        is_killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        if rank != first and is_killed:
            lines.append(f'rank {rank}: {told(failure)}')
    return '\n'.join(lines)


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
