"""Resume a run exactly where its checkpoint was saved.

mmengine restores weights, optimizer, schedulers and counters. This module restores the
rest: the samplers' seed, the position in an epoch, gradients that were being
accumulated, the state of hooks, and a validation that was due when the run ended.
"""

from bisect import bisect
from functools import partial

import numpy as np
import torch
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.logging import HistoryBuffer
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop as MMEngineEpochBasedTrainLoop
from mmengine.runner import IterBasedTrainLoop

from .data.loaders import positioned

VALIDATED = 'iter_of_validation'


class EpochBasedTrainLoop(MMEngineEpochBasedTrainLoop):
    """Run epochs, the first of them from `first_batch` on."""

    first_batch = 0

    def run_iter(self, idx: int, data_batch):
        super().run_iter(self.first_batch + idx, data_batch)


def _make_plain(message_hub: dict):
    """Replace histories and numpy's numbers by data that PyTorch reads by itself."""
    scalars, info = message_hub['log_scalars'], message_hub['runtime_info']
    for name, history in scalars.items():
        log, count = map(torch.as_tensor, history.data)
        scalars[name] = dict(log=log, count=count, max_length=history.max_length)
    for name, value in info.items():
        if isinstance(value, np.generic):
            info[name] = value.item()


def _stateful_hooks(runner) -> dict[str, tuple]:
    """Return the functions that get and set the state of hooks, by names of the hooks.

    mmengine's other hooks find theirs by the epoch, or save it themselves.
    """
    found = {}
    for hook in runner.hooks:
        name = type(hook).__name__
        if isinstance(hook, EarlyStoppingHook):
            functions = partial(_stopping, hook), vars(hook).update
            name += f' {hook.monitor} {hook.rule}'
        elif hasattr(hook, 'state_dict') and hasattr(hook, 'load_state_dict'):
            functions = hook.state_dict, hook.load_state_dict
        else:
            continue
        number = sum(other.startswith(f'{name} #') for other in found)
        found[f'{name} #{number}'] = functions
    return found


def _stopping(hook: EarlyStoppingHook) -> dict:
    return dict(best_score=float(hook.best_score), wait_count=hook.wait_count)


class ResumeHook(Hook):
    """Save the position with each checkpoint and restore it when training resumes.

    A hook with `state_dict` and `load_state_dict`, as modules have, continues as well.
    Its state consists of tensors, numbers, text and containers of them.
    """

    priority = 'LOWEST'

    def __init__(self):
        self._checkpoint = {}  # the parts of the loaded one that the runner lacks
        self._batches_done = 0  # of this epoch
        self._training = False

    def before_save_checkpoint(self, runner, checkpoint: dict):
        meta = checkpoint['meta']
        inside = meta['epoch'] == runner.epoch  # otherwise the epoch counts as finished
        meta.update(
            world_size=runner.world_size,
            batches_per_epoch=len(runner.train_dataloader),
            batches_done=self._batches_done if inside else 0,
        )
        _make_plain(checkpoint['message_hub'])
        checkpoint['hooks'] = {
            name: get() for name, (get, _) in _stateful_hooks(runner).items()
        }
        wrapper = runner.optim_wrapper
        if 'optimizer' not in checkpoint or not isinstance(wrapper, OptimWrapper):
            return
        if isinstance(wrapper, OptimWrapperDict):
            meta['inner_counts'] = {
                name: inner.inner_count for name, inner in wrapper.items()
            }
        elif wrapper.should_update():
            return
        gradients = {
            name: param.grad
            for name, param in runner.model.named_parameters()
            if param.grad is not None
        }
        if gradients and runner.distributed:
            runner.logger.warning(
                'This checkpoint is saved while gradients are accumulated. They '
                'differ by rank and are not saved, so a run that resumes from it will '
                'not repeat this one exactly.'
            )
        elif gradients:
            checkpoint['gradients'] = {
                name: gradient.cpu() for name, gradient in gradients.items()
            }

    def after_load_checkpoint(self, runner, checkpoint: dict):
        self._checkpoint = {
            key: checkpoint[key]
            for key in ('meta', 'gradients', 'hooks')
            if key in checkpoint
        }
        scalars = checkpoint.get('message_hub', {}).get('log_scalars', {})
        for name, history in scalars.items():
            if isinstance(history, dict):  # mmengine's own runner saves objects
                log, count = history['log'].numpy(), history['count'].numpy()
                scalars[name] = HistoryBuffer(log, count, history['max_length'])

    def before_train(self, runner):
        self._training = True
        checkpoint, self._checkpoint = self._checkpoint, {}
        meta = checkpoint.get('meta', {})
        if runner.iter == 0 or meta.get('iter') != runner.iter:
            return  # nothing has been resumed
        for loop in (runner.train_loop, runner.val_loop):
            if loop is not None and positioned(loop.dataloader) is not None:
                positioned(loop.dataloader).reseed(runner.shared_seed)
        runner.logger.info(f'Seed of the checkpoint: {runner.shared_seed}')
        self._batches_done = _batches_done(runner, meta)
        # mmengine restores the count of a single wrapper, which is the iteration.
        if isinstance(runner.optim_wrapper, OptimWrapperDict):
            counts = meta.get('inner_counts', {})
            for name, wrapper in runner.optim_wrapper.items():
                wrapper._inner_count = counts.get(name, wrapper.inner_count)
        if gradients := checkpoint.get('gradients', {}):
            for name, param in runner.model.named_parameters():
                if name in gradients:
                    param.grad = gradients[name].to(param.device)
            runner.logger.info('Restored the gradients that were being accumulated.')
        states = checkpoint.get('hooks', {})
        for name, (_, set_state) in _stateful_hooks(runner).items():
            if name in states:
                set_state(states[name])
        if self._batches_done == 0 and _validation_is_due(runner):
            runner.logger.info(
                'The checkpoint was saved before its validation, which runs first.'
            )
            runner.val_loop.run()

    def before_train_epoch(self, runner):
        loop = runner.train_loop
        batches = positioned(loop.dataloader)
        if isinstance(loop, IterBasedTrainLoop) or batches is None:
            return  # a loop of iterations skips its batches by itself
        batches.resume(at=runner.iter, number=runner.iter - self._batches_done)
        loop.first_batch = self._batches_done

    def before_train_iter(self, runner, batch_idx: int, data_batch=None):
        self._batches_done = batch_idx + 1

    def after_train_epoch(self, runner):
        self._batches_done = 0

    def before_val_epoch(self, runner):
        if self._training:  # otherwise runner.iter would build the training data
            runner.message_hub.update_info(VALIDATED, runner.iter)
        if positioned(runner.val_dataloader) is not None:
            positioned(runner.val_dataloader).resume(at=0)

    def before_test_epoch(self, runner):
        if positioned(runner.test_dataloader) is not None:
            positioned(runner.test_dataloader).resume(at=0)


def _batches_done(runner, meta: dict) -> int:
    """Return the batches to skip; warn if the data cannot be the same."""
    done = meta.get('batches_done', 0)
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        done = 0
    changes = [
        f'{name} was {meta[name]}, is {now}'
        for name, now in (
            ('world_size', runner.world_size),
            ('batches_per_epoch', len(runner.train_dataloader)),
        )
        if meta.get(name, now) != now
    ]
    if changes:
        runner.logger.warning(
            f'The order of the data differs from the resumed run: {", ".join(changes)}.'
            + (' The epoch starts over.' if done else '')
        )
        return 0
    if done and positioned(runner.train_dataloader) is None:
        runner.logger.warning(
            'The dataloader was not built from a config: the epoch starts over.'
        )
        return 0
    return done


def _validation_is_due(runner) -> bool:
    """Return whether a validation is due here that the checkpoint does not include."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return False
    if runner.message_hub.runtime_info.get(VALIDATED) == runner.iter:
        return False
    if isinstance(loop, IterBasedTrainLoop):
        now, last = loop.iter, loop.max_iters
    else:
        now, last = loop.epoch, loop.max_epochs
    interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, now + 1) - 1]
    return now >= loop.val_begin and (now % interval == 0 or now == last)
