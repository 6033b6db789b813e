"""Find learning-rate schedules that do not end with the run, and scale them.

mmengine keeps the two apart: with `train_cfg.max_iters=60` a cosine of 300 iterations
stops near its start, and with 600 the second half trains at the lowest rate.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from mmengine.hooks import Hook
from mmengine.optim.scheduler.param_scheduler import (
    CosineAnnealingParamScheduler,
    LinearParamScheduler,
    MultiStepParamScheduler,
    OneCycleParamScheduler,
    PolyParamScheduler,
    _ParamScheduler,
)
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import BaseLoop, IterBasedTrainLoop
from mmengine.utils import is_seq_of

TOLERANCE = 0.01  # of the run
# The lengths that `scaled` scales, by the type of the scheduler.
LENGTHS = {
    'Linear': (),
    'Constant': (),
    'CosineAnnealing': ('T_max',),
    'Poly': (),
    'MultiStep': ('milestones',),
    'Step': ('step_size',),
    'OneCycle': ('total_steps',),
}
KIND = re.compile(r'(\w+\.)*(?P<kind>\w+?)(LR|Momentum|ParamScheduler)')


class Length(NamedTuple):
    """Length of a run in epochs and in iterations.

    Attributes:
        epoch_length: 0 in a run that counts iterations or has a single epoch.
        by_epoch: whether the run counts epochs.
    """

    epochs: int
    iters: int
    epoch_length: int
    by_epoch: bool = True

    @classmethod
    def of_run(cls, runner) -> 'Length | None':
        loop = runner._train_loop
        if not isinstance(loop, BaseLoop) or not all(
            isinstance(getattr(loop, name, None), int)
            for name in ('max_epochs', 'max_iters')
        ):
            return None
        epoch_length = len(loop.dataloader) if loop.max_epochs > 1 else 0
        by_epoch = not isinstance(loop, IterBasedTrainLoop)
        return cls(loop.max_epochs, loop.max_iters, epoch_length, by_epoch)

    def end(self, scheduler: _ParamScheduler) -> int:
        return self.epochs if scheduler.by_epoch else self.iters

    def differs(self, scheduler: _ParamScheduler, place: float) -> bool:
        """Return whether `place`, in the scheduler's unit, is not the run's end."""
        end = self.end(scheduler)
        distance = abs(place - end)
        # Iterations computed from epochs differ from the end by less than an epoch.
        least = 0 if scheduler.by_epoch else self.epoch_length
        return distance > TOLERANCE * end and distance >= least


class Mismatch(NamedTuple):
    """A scheduler that does not end with the run.

    Attributes:
        index: its place in the list of schedulers.
        place: where it ends.
        end: where the run ends, in the same unit.
        key: the key of the config that sets the scheduler's end.
    """

    index: int
    scheduler: _ParamScheduler
    place: int
    end: int
    key: str


def mismatches(schedulers: list[_ParamScheduler], run: Length) -> Iterator[Mismatch]:
    """Yield the schedulers of an optimizer that the run cuts off or outlasts.

    The schedulers of one parameter form one schedule. Those that rise to the base
    value, such as a warm-up, may end at any time before the run. The last of the others
    must end with it.
    """
    for name in dict.fromkeys(scheduler.param_name for scheduler in schedulers):
        part = {i: s for i, s in enumerate(schedulers) if s.param_name == name}
        found = [
            Mismatch(i, scheduler, place, run.end(scheduler), key)
            for i, scheduler in part.items()
            for place, key in [_goal(scheduler, run)]
            if place > run.end(scheduler) and run.differs(scheduler, place)
        ]
        yield from found
        falling = [i for i, scheduler in part.items() if not _rises(scheduler)]
        if found or not falling:
            continue
        last = max(part, key=lambda i: part[i].end / run.end(part[i]))
        scheduler = part[last]
        if scheduler.end < run.end(scheduler) and run.differs(scheduler, scheduler.end):
            yield Mismatch(last, scheduler, scheduler.end, run.end(scheduler), 'end')


def _goal(scheduler: _ParamScheduler, run: Length) -> tuple[int, str]:
    """Return where a scheduler ends and the key that sets it; 0 if none is cut."""
    if isinstance(scheduler, MultiStepParamScheduler):
        return scheduler.begin + max(scheduler.milestones, default=0), 'milestones'
    if isinstance(scheduler, OneCycleParamScheduler):
        return scheduler.begin + scheduler.total_steps, 'total_steps'
    if isinstance(scheduler, CosineAnnealingParamScheduler):
        span = scheduler.end - scheduler.begin
        # Many configs count T_max from 0 instead of from `begin`.
        if scheduler.T_max > span and run.differs(scheduler, scheduler.T_max):
            return scheduler.begin + scheduler.T_max, 'T_max'
        return scheduler.end, 'end'
    if isinstance(scheduler, PolyParamScheduler | LinearParamScheduler):
        return scheduler.end, 'end'
    return 0, 'end'


def _rises(scheduler: _ParamScheduler) -> bool:
    if isinstance(scheduler, LinearParamScheduler):
        return scheduler.start_factor <= scheduler.end_factor
    return bool(re.match('Constant|.*Warmup', type(scheduler).__name__))


class ScheduleHook(Hook):
    """Warn before training if a schedule does not end with the run."""

    def before_train(self, runner):
        run = Length.of_run(runner)
        schedulers = runner.param_schedulers
        if run is None:
            return
        if not isinstance(schedulers, dict) or 'type' in schedulers:
            schedulers = {None: schedulers}
        for name, part in schedulers.items():
            if not is_seq_of(part, _ParamScheduler):
                continue  # not built, since the run does not train
            prefix = 'param_scheduler' + ('' if name is None else f'.{name}')
            for mismatch in mismatches(part, run):
                runner.logger.warning(_message(mismatch, prefix))


def _message(mismatch: Mismatch, prefix: str) -> str:
    index, scheduler, place, end, key = mismatch
    unit, run_key = ('iteration', 'max_iters')
    if scheduler.by_epoch:
        unit, run_key = 'epoch', 'max_epochs'
    effect = (
        'the run is over before the schedule'
        if place > end
        else 'the rest of the run trains at the last value'
    )
    return (
        f'{prefix}.{index}.{key}: {type(scheduler).__name__} ends at {unit} {place}, '
        f'but the run ends at {unit} {end} (train_cfg.{run_key}), so {effect}. '
        'scale_schedule=True in the config (--cfg-options scale_schedule=True) '
        'scales the schedule to the run. A resumed run keeps the schedule of its '
        'checkpoint.'
    )


def scaled(configs: list, run: Length) -> list:
    """Return the schedulers of one optimizer with their lengths scaled to the run.

    All lengths of a parameter's schedule, including warm-ups, are multiplied by the
    same number, which keeps their proportions. A schedule that fits is not changed.

    Args:
        configs: dicts of a config's `param_scheduler`.
        run: the length to scale to.

    Raises:
        ValueError: a scheduler is not a dict, its type cannot be scaled, or its config
            does not set where the schedule ends.
    """
    for config in configs:
        if not isinstance(config, dict):
            raise ValueError(
                'scale_schedule needs param_scheduler as dicts, got '
                f'{type(config).__name__}'
            )
    built = [_built(config, run) for config in configs]
    configs = list(configs)
    found = {m.scheduler.param_name: m for m in mismatches(built, run)}
    for name, mismatch in found.items():
        part = [i for i, scheduler in enumerate(built) if scheduler.param_name == name]
        share = max(
            (
                _whole(configs[i], built[i], run) / run.end(built[i])
                for i in part
                if not _rises(built[i])
            ),
            default=1.0,
        )
        if run.differs(mismatch.scheduler, share * mismatch.end):
            for i in part:
                configs[i] = _multiplied(configs[i], built[i], run, 1 / share)
        elif not _rises(mismatch.scheduler):
            raise ValueError(
                f'scale_schedule cannot tell where the schedule of {name!r} ends: give '
                f'`end` to {configs[mismatch.index]["type"]}, got '
                f'{dict(configs[mismatch.index])}'
            )
    return configs


def _built(config: dict, run: Length) -> _ParamScheduler:
    """Build a scheduler on an unused optimizer, in the unit of its config."""
    config = {k: v for k, v in config.items() if k != 'convert_to_iter_based'}
    config.setdefault('end', run.epochs if config.get('by_epoch', True) else run.iters)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
    return PARAM_SCHEDULERS.build(config, default_args=dict(optimizer=optimizer))


def _whole(config: dict, scheduler: _ParamScheduler, run: Length) -> int:
    """Return where a scheduler's config ends it; by default it ends with the run."""
    if 'end' in config or isinstance(scheduler, MultiStepParamScheduler):
        return scheduler.end
    return _goal(scheduler, run)[0] or scheduler.end


def _multiplied(
    config: dict, scheduler: _ParamScheduler, run: Length, factor: float
) -> dict:
    kind = config['type']
    kind = kind if isinstance(kind, str) else kind.__name__
    match = KIND.fullmatch(kind)
    if match is None or match['kind'] not in LENGTHS:
        raise ValueError(
            f'scale_schedule can scale {", ".join(LENGTHS)}, got {kind}: set its '
            'lengths to those of the run'
        )

    if config.get('by_epoch', True) and not run.by_epoch:
        raise ValueError(
            f'scale_schedule cannot scale {kind}, which counts epochs, to a run that '
            'counts iterations: give it by_epoch=False and lengths in iterations'
        )

    def times(length: int) -> int:
        return max(1, round(length * factor))

    new = dict(config)
    begin = round(config.get('begin', 0) * factor)
    if 'begin' in config:
        new['begin'] = begin
    if 'end' in config:
        new['end'] = max(times(config['end']), begin + 1)
    for name in LENGTHS[match['kind']]:
        if name not in config:
            continue
        value = config[name]
        if isinstance(value, list | tuple):
            new[name] = [times(item) for item in value]
        elif value == scheduler.end - scheduler.begin and 'end' in config:
            new[name] = new['end'] - begin
        else:
            new[name] = times(value)
    return new
