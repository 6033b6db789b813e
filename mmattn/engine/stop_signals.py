"""Save a run that SIGINT (Ctrl-C) or SIGTERM (Slurm, Kubernetes, kill) ends.

The iteration or validation that the signal interrupts is finished first, so the resumed
run continues as if it had not been stopped.
"""

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable

import torch
from mmengine.dist import all_reduce, barrier
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict

from .checkpoint_hook import CheckpointHook

# Handlers of a plain Python process. Any other handler is kept.
PLAIN = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
# Slurm signals torchrun and its processes, and torchrun forwards its signal. Signals
# within this many seconds count as one.
BURST = 1.0


class StopHook(Hook):
    """Save through the checkpoint hook after a signal, on all ranks at the same step.

    A second signal ends the process at once. Signals keep their usual effect outside
    the main thread and in runs without a checkpoint hook.

    Raises:
        KeyboardInterrupt: after SIGINT, once the checkpoint is written.
        SystemExit: after SIGTERM, with status 143.
    """

    priority = 'LOWEST'

    def __init__(self):
        self._received = 0
        self._since = 0.0
        self._process = None
        self._replaced = []
        self._saver = None

    def before_train(self, runner):
        hooks = (hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
        self._saver = next(hooks, None)
        self._received = 0
        self._process = os.getpid()
        if self._saver is None or (
            threading.current_thread() is not threading.main_thread()
        ):
            return
        for number, plain in PLAIN.items():
            if signal.getsignal(number) is plain:
                signal.signal(number, self._receive)
                self._replaced.append(number)
        sigterm_is_handled().fill_(signal.SIGTERM in self._replaced)

    def restore(self):
        """Restore the handlers that `before_train` has replaced."""
        self._saver = None
        sigterm_is_handled().fill_(0)
        while self._replaced:
            number = self._replaced.pop()
            signal.signal(number, PLAIN[number])

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._stop_if_asked(runner, dict(epoch=runner.epoch, iter=runner.iter + 1))

    def after_val_epoch(self, runner, metrics=None):
        if self._saver is not None:  # otherwise this is `runner.val()`
            self._stop_if_asked(runner, dict(epoch=runner.epoch, iter=runner.iter))

    def _receive(self, number: int, frame):
        now = time.monotonic()
        if os.getpid() != self._process or (
            self._received and now - self._since > BURST
        ):
            self.restore()
            os.kill(os.getpid(), number)
        elif not self._received:
            self._received, self._since = number, now
            name = signal.Signals(number).name
            # A logger may be writing a line, so bypass it.
            message = f'\n{name}: finishing this step, then saving. Again: stop now.\n'
            os.write(2, message.encode())

    def _stop_if_asked(self, runner, meta: dict):
        if self._saver is None:
            return
        number = self._received
        if runner.distributed:
            # The signal may reach one rank a step before another.
            wish = torch.tensor(number)
            all_reduce(wish, 'max')
            number = int(wish)
            if number and _accumulates(runner):
                return  # gradients that differ by rank cannot be saved
        if not number:
            return
        path = self._saver.save_stopped(runner, meta)
        barrier()  # torchrun ends all processes when the first one ends
        runner.logger.warning(
            f'{signal.Signals(number).name}: stopped after iteration {meta["iter"]}, '
            f'saved to {path}; --resume continues from there.'
        )
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _accumulates(runner) -> bool:
    wrapper = runner.optim_wrapper
    return not isinstance(wrapper, OptimWrapperDict) and not wrapper.should_update()


@functools.cache
def sigterm_is_handled() -> torch.Tensor:
    """Return the number, in shared memory, that is 1 while a run handles SIGTERM."""
    return torch.zeros((), dtype=torch.uint8).share_memory_()


def start_worker(worker_id: int, *, init: Callable[[int], None], handled: torch.Tensor):
    """Start a worker of a loader that lives on when a signal stops the run.

    A terminal, Slurm and torchrun also signal the workers, which the run needs to
    finish its iteration. The main process ends them by SIGTERM while it does not handle
    that signal itself. If it is killed, they end by themselves.

    Args:
        init: function of the worker's number that does the rest.
        handled: what `sigterm_is_handled` returns in the main process.
    """

    def receive(number: int, frame):
        if not handled:
            os._exit(0)  # as torch's own handler does: anything else is an error

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, receive)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    init(worker_id)


def _end_with_parent():
    """Wait for the end of the process that started this one, and end this one.

    torch looks for it only while a worker waits for work. A worker that holds batches
    that nobody reads would live on.
    """
    multiprocessing.parent_process().join()
    os._exit(1)
