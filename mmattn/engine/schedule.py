"""Find learning-rate schedules that do not end with the run, and scale them.

mmengine keeps the two apart: with `train_cfg.max_iters=60` a cosine of 300 iterations
stops near its start, and with 600 the second half trains at the lowest rate.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from mmengine.hooks import Hook
from mmengine.optim import (
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

from mmattn.errors import UserError

TOLERANCE = 0.01  # of the run
WARM_UP = 1 / 3  # largest share of a run for a warm-up
# Steps of the shortest warm-up. After a single one mmengine's LinearLR and ConstantLR
# would keep their first rate.
SHORTEST = 2
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
PLACES = {'begin', 'end'}.union(*LENGTHS.values())
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
    def of_loop(cls, loop) -> 'Length | None':
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


def is_warm_up(scheduler: _ParamScheduler) -> bool:
    """Return whether a scheduler rises from the start of a run."""
    return scheduler.begin == 0 and _rises(scheduler)


class ScheduleHook(Hook):
    """Warn before training if a schedule does not end with the run."""

    def before_train(self, runner):
        run = Length.of_loop(runner.train_loop)
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
                scales = runner.cfg.get('scale_schedule', False)
                runner.logger.warning(_message(mismatch, prefix, scales))


def _message(mismatch: Mismatch, prefix: str, scales: bool) -> str:
    index, scheduler, place, end, key = mismatch
    unit, run_key = 'iteration', 'max_iters'
    if scheduler.by_epoch:
        unit, run_key = 'epoch', 'max_epochs'
    effect = 'the rest of the run trains at the last value'
    if place > end:
        effect = 'the run is over before the schedule'
    advice = 'scale_schedule=True in the config (--cfg-options scale_schedule=True) '
    advice = '' if scales else f'{advice}scales the schedule to the run. '
    return (
        f'{prefix}.{index}.{key}: {type(scheduler).__name__} ends at {unit} {place}, '
        f'but the run ends at {unit} {end} (train_cfg.{run_key}), so {effect}. '
        f'{advice}A resumed run keeps the schedule of its checkpoint.'
    )


class Scale(NamedTuple):
    """Move the places of a schedule, in shares of the run, so that it ends with it.

    Steps of a warm-up do not depend on the length of a run: a network needs as many in
    a short one. A warm-up therefore keeps its length up to a third of the run.

    Attributes:
        end: where the schedule ends; it is moved to 1.
        warm_up: where its warm-up ends, before `end`; 0 without one.
    """

    end: float
    warm_up: float

    @property
    def new_warm_up(self) -> float:
        return min(self.warm_up, WARM_UP)

    @property
    def rate(self) -> float:
        """Factor of lengths after the warm-up."""
        return (1 - self.new_warm_up) / (self.end - self.warm_up)

    def __call__(self, place: float) -> float:
        if place < self.warm_up:
            return place * self.new_warm_up / self.warm_up
        return self.new_warm_up + (place - self.warm_up) * self.rate


def scaled(configs: list, run: Length) -> list:
    """Return the schedulers of one optimizer with their lengths scaled to the run.

    A warm-up, a scheduler that rises from the start, keeps its length as long as it
    takes at most a third of the run, and is shortened to a third otherwise. What
    follows is scaled to the rest of the run. A schedule that fits is not changed. In a
    run of fewer than six epochs a third is less than two, so a warm-up, and what
    `convert_to_iter_based` marks, is counted in iterations.

    Args:
        configs: dicts of a config's `param_scheduler`.
        run: the length to scale to.

    Raises:
        ValueError: a scheduler is not a dict, its type cannot be scaled, or its config
            does not set where the schedule ends.
    """
    for config in configs:
        if not isinstance(config, dict):
            raise UserError(
                'scale_schedule needs param_scheduler as dicts, got '
                f'{type(config).__name__}'
            )
    built = [_built(config, run) for config in configs]
    configs = list(configs)
    found = {
        mismatch.scheduler.param_name: mismatch
        for mismatch in mismatches(built, run)
        if not _rises(mismatch.scheduler)
    }
    for name in dict.fromkeys(scheduler.param_name for scheduler in built):
        part = [i for i, scheduler in enumerate(built) if scheduler.param_name == name]
        ends = {i: _whole(configs[i], built[i], run) / run.end(built[i]) for i in part}
        end = max((ends[i] for i in part if not _rises(built[i])), default=1.0)
        warm_ups = {
            i: ends[i]
            for i in part
            if _rises(built[i]) and built[i].begin == 0 and 'end' in configs[i]
        }
        warm_up = max(warm_ups.values(), default=0.0)
        mismatch = found.get(name)
        if mismatch and not run.differs(mismatch.scheduler, end * mismatch.end):
            raise UserError(
                f'scale_schedule cannot tell where the schedule of {name!r} ends: give '
                f'`end` to {configs[mismatch.index]["type"]}, got '
                f'{dict(configs[mismatch.index])}'
            )
        if mismatch is None and warm_up <= WARM_UP:
            continue
        for i in part:
            if warm_up < end:
                scale = Scale(end, warm_up)
            else:  # they overlap, so each is scaled by itself
                scale = Scale(warm_up / WARM_UP if i in warm_ups else end, 0.0)
            config, scheduler = configs[i], built[i]
            if run.by_epoch and run.epochs * WARM_UP < SHORTEST:
                if i in warm_ups or config.get('convert_to_iter_based', False):
                    config = _in_iterations(config, run)
                    scheduler = _built(config, run)
            configs[i] = _moved(config, scheduler, run, scale)
    return configs


def _in_iterations(config: dict, run: Length) -> dict:
    """Return the config of a scheduler that counts epochs, counting iterations."""
    if not config.get('by_epoch', True):
        return config
    new = {k: v for k, v in config.items() if k != 'convert_to_iter_based'}
    new['by_epoch'] = False
    length = run.iters // run.epochs
    for name in PLACES & new.keys():
        value = new[name]
        is_list = isinstance(value, list | tuple)
        new[name] = [item * length for item in value] if is_list else value * length
    return new


def changes(before: list[dict], after: list[dict]) -> list[str]:
    """Return a line for each scheduler, with its places before and after `scaled`.

    Return nothing if nothing has changed.
    """
    lines = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        places = [
            f'{key} {value}' + (f' -> {new[key]}' if new[key] != value else '')
            for key, value in old.items()
            if key in PLACES
        ]
        lines.append(
            f'scale_schedule: param_scheduler.{index} ({_kind(old)}): '
            f'{", ".join(places)}'
        )
    return lines if before != after else []


def _kind(config: dict) -> str:
    kind = config['type']
    return kind if isinstance(kind, str) else kind.__name__


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


def _moved(config: dict, scheduler: _ParamScheduler, run: Length, scale: Scale) -> dict:
    kind = _kind(config)
    match = KIND.fullmatch(kind)
    if match is None or match['kind'] not in LENGTHS:
        raise UserError(
            f'scale_schedule can scale {", ".join(LENGTHS)}, got {kind}: set its '
            'lengths to fit the run'
        )

    if config.get('by_epoch', True) and not run.by_epoch:
        raise UserError(
            f'scale_schedule cannot scale {kind}, which counts epochs, to a run that '
            'counts iterations: give it by_epoch=False and lengths in iterations'
        )

    def place(old: int) -> int:
        end = run.end(scheduler)
        share = scale(old / end)
        new = round(share * end)
        if share < WARM_UP + 1e-9:
            new = min(new, end // 3)  # a warm-up that takes a third is not rounded up
        is_warm_up = 0 < old / end <= scale.warm_up and not scheduler.by_epoch
        return max(new, SHORTEST) if is_warm_up else new

    new = dict(config)
    begin = place(scheduler.begin)
    if 'begin' in config:
        new['begin'] = begin
    if 'end' in config:
        least = SHORTEST if _rises(scheduler) else 1
        new['end'] = max(place(config['end']), begin + least)
    for name in LENGTHS[match['kind']]:
        if name not in config:
            continue
        value = config[name]
        if name == 'milestones':  # they count from `begin`
            new[name] = [
                max(1, place(scheduler.begin + item) - begin) for item in value
            ]
        elif value == config.get('end'):  # counted from 0 instead of from `begin`
            new[name] = new['end']
        elif value == scheduler.end - scheduler.begin and 'end' in config:
            new[name] = new['end'] - begin
        elif name == 'total_steps':
            new[name] = max(1, place(scheduler.begin + value) - begin)
        else:
            new[name] = max(1, round(value * scale.rate))
    return new
