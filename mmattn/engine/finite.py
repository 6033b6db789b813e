"""Stop a run whose loss or weights are infinite or NaN, before it saves them."""

from pathlib import Path

import torch
from mmengine.hooks import Hook

from mmattn.errors import UserError

from ..files.last_checkpoint import LAST

REMEDY = 'Lower the learning rate, lengthen its warm-up or clip the gradients'


class FiniteHook(Hook):
    """Check the losses of each iteration, and the weights of each checkpoint.

    A step in float16 whose loss overflows is skipped by the loss scaler, so the run
    goes on with a warning.

    Raises:
        UserError: a loss or a weight is infinite or NaN. The last checkpoint, which
            the message names, is finite.
    """

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        losses = {
            name: torch.as_tensor(value).detach()
            for name, value in (outputs or {}).items()
            if 'loss' in name
        }
        # The sum waits for a GPU once, each loss by itself would do so again.
        if torch.as_tensor(sum(losses.values())).isfinite():
            return
        bad = [name for name, loss in losses.items() if not loss.isfinite()]
        losses = ', '.join(f'{name} is {losses[name]}' for name in bad or losses)
        found = f'iteration {runner.iter + 1}: {losses}.'
        scaler = getattr(runner.optim_wrapper, 'loss_scaler', None)
        if scaler is not None and scaler.is_enabled():
            runner.logger.warning(f'{found} The step is skipped.')
            return
        raise UserError(f'{found} {_what_to_do(runner)}')

    def before_save_checkpoint(self, runner, checkpoint):
        for name, weight in runner.model.named_parameters():
            if not weight.isfinite().all():
                raise UserError(
                    f'the weight {name} is infinite or NaN, so it is not saved. '
                    f'{_what_to_do(runner)}'
                )


def _what_to_do(runner) -> str:
    last = Path(runner.work_dir, LAST)
    if not last.is_file():
        return f'There is no checkpoint yet. {REMEDY}.'
    return f'{REMEDY}, and resume from {last.read_text()}.'
