"""Show a summary on the console before the first loss, and the rest in the log file.

mmengine prints the environment, the config, the order of the hooks and its own
messages, 400 to 700 lines in all. A filter on the logger's console handlers keeps them
from the console until the run begins. Warnings, errors and messages logged with
`extra=SHOWN` pass it. The log file has everything.
"""

import logging
import time
from datetime import timedelta
from itertools import chain

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict

from .model import unwrapped
from .schedule import Length, is_warm_up

SHOWN = {'first_screen': True}
MEASURED = 4  # iterations, after the first, that an estimate is made of


def _is_shown(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or hasattr(record, 'first_screen')


def _console(logger: logging.Logger) -> list[logging.Handler]:
    return [
        handler
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler)
        and not isinstance(handler, logging.FileHandler)
    ]


def show_summary(logger: logging.Logger):
    """Let only the summary, warnings and errors pass to the console.

    A console of the level DEBUG still shows everything.
    """
    for handler in _console(logger):
        if handler.level > logging.DEBUG:
            handler.addFilter(_is_shown)


def show_all(logger: logging.Logger):
    """Let everything pass to the console again."""
    for handler in _console(logger):
        handler.removeFilter(_is_shown)


class FirstScreenHook(Hook):
    """Complete the summary when the run begins, and let what follows pass.

    After a few iterations it estimates the length of a training.
    """

    priority = 'LOWEST'

    def before_train(self, runner):
        _begin(runner, _model(runner), *_schedule(runner), _device(runner))
        self._first = runner.iter

    def before_val(self, runner):
        show_all(runner.logger)

    def before_test(self, runner):
        _begin(runner, _model(runner), _device(runner))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        done = runner.iter + 1 - self._first
        if done == 1:
            self._started = time.monotonic()
        elif done == 1 + MEASURED:
            seconds = (time.monotonic() - self._started) / MEASURED
            left = runner.max_iters - runner.iter - 1
            whole = timedelta(seconds=round(left * seconds))
            runner.logger.info(
                f'estimate: {whole} for {left} iterations of {seconds:.2f} s, and the '
                'validations'
            )


def _begin(runner, *lines: str):
    for line in (*lines, f'work dir: {runner.work_dir}'):
        runner.logger.info(line, extra=SHOWN)
    show_all(runner.logger)


def _model(runner) -> str:
    model = unwrapped(runner.model)
    parts = [type(model).__name__]
    if hasattr(model, 'backbone'):
        parts.append(f'backbone {type(model.backbone).__name__}')
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parts.append(f'{total:,} parameters')
    if trained < total:
        parts.append(f'{total - trained:,} of them frozen')
    return f'model: {", ".join(parts)}'


def _schedule(runner) -> list[str]:
    """Return lines about the iterations, the batches and the learning rate."""
    parts = []
    if (run := Length.of_loop(runner.train_loop)) is not None:
        parts.append(f'{run.iters} iterations')
        if run.by_epoch:
            parts[0] += f' in {run.epochs} epoch{"s" * (run.epochs > 1)}'
    loader = runner.train_dataloader
    batch = loader.batch_size or getattr(loader.batch_sampler, 'batch_size', None)
    if batch is not None:
        processes = f' on each of {runner.world_size} processes'
        parts.append(f'batches of {batch}{processes if runner.world_size > 1 else ""}')
    if runner.iter:
        parts.append(f'resumed after iteration {runner.iter}')
    return [f'schedule: {", ".join(parts)}', _learning_rate(runner)]


def _learning_rate(runner) -> str:
    wrapper = runner.optim_wrapper
    by_name = dict(wrapper.items()) if isinstance(wrapper, OptimWrapperDict) else {}
    wrappers = [*by_name.values()] or [wrapper]
    kinds = dict.fromkeys(type(each.optimizer).__name__ for each in wrappers)
    groups = chain(*(each.param_groups for each in wrappers))
    rates = [group.get('initial_lr', group['lr']) for group in groups]
    lowest = f'{min(rates):g} to ' if min(rates) < max(rates) else ''
    parts = [f'{" and ".join(kinds)} of {lowest}{max(rates):g}']
    schedulers = runner.param_schedulers or ()
    if isinstance(schedulers, dict):
        schedulers = chain(*schedulers.values())
    for scheduler in schedulers:
        unit = 'epochs' if scheduler.by_epoch else 'iterations'
        kind = type(scheduler).__name__
        if is_warm_up(scheduler):
            parts.append(f'warm-up of {scheduler.end} {unit} ({kind})')
        else:
            parts.append(f'{kind} over {unit} {scheduler.begin} to {scheduler.end}')
    return f'learning rate: {", ".join(dict.fromkeys(parts))}'


def _device(runner) -> str:
    parameter = next(runner.model.parameters(), torch.empty(0))
    device = str(parameter.device)
    if parameter.device.type == 'cuda':
        device += f' ({torch.cuda.get_device_name(parameter.device)})'
    lower = getattr(runner.optim_wrapper, 'cast_dtype', None)
    precision = str(lower or parameter.dtype).removeprefix('torch.')
    return f'device: {device}, {"mixed precision in " if lower else ""}{precision}'
