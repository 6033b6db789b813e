"""Show the progress of a run on a terminal."""

import sys
from contextlib import ExitStack

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm


class ProgressHook(Hook):
    """Show a bar of the iterations below the log, if stderr is a terminal.

    A validation has a bar of its own below it. Log files get no bar, and neither do
    outputs that are no terminal.
    """

    priority = 'VERY_LOW'

    def __init__(self):
        self._shown = ExitStack()
        self.bar = self.validation = None

    def before_train(self, runner):
        if not is_main_process() or not sys.stderr.isatty():
            return
        self._shown.enter_context(logging_redirect_tqdm([runner.logger]))
        self.bar = self._shown.enter_context(
            tqdm(
                total=runner.max_iters,
                initial=runner.iter,
                unit='iter',
                dynamic_ncols=True,
            )
        )

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.bar is not None:
            self.bar.update()

    def before_val_epoch(self, runner):
        if self.bar is not None:
            self.validation = tqdm(
                total=len(runner.val_dataloader),
                desc='validates',
                unit='batch',
                leave=False,
                dynamic_ncols=True,
            )

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.validation is not None:
            self.validation.update()

    def after_val_epoch(self, runner, metrics=None):
        if self.validation is not None:
            self.validation.close()
            self.validation = None

    def close(self):
        """Remove the bars, and let the log print as before."""
        self.after_val_epoch(None)
        self._shown.close()
        self.bar = None
