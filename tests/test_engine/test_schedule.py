"""Schedules end where the run ends; if they do not, a warning or a fix follows.

`tests/test_configs` looks at the schedules of all our configs.
"""

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from tiny_run import make_runner

from mmattn.engine.schedule import Length, mismatches, scaled

EPOCHS = Length(epochs=12, iters=1200, epoch_length=100)
ITERS = Length(epochs=1, iters=60, epoch_length=0, by_epoch=False)
FOUR_ITERS = Length(epochs=1, iters=4, epoch_length=0, by_epoch=False)
ONE_EPOCH = Length(epochs=1, iters=50, epoch_length=0)
TWO_EPOCHS = Length(epochs=2, iters=100, epoch_length=50)


def found(configs, run):
    """Return the mismatches of schedulers that are built as mmengine's runner does."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
    defaults = dict(optimizer=optimizer, epoch_length=run.epoch_length or run.iters)
    ends = [run.epochs if c.get('by_epoch', True) else run.iters for c in configs]
    built = [
        PARAM_SCHEDULERS.build(dict(end=end) | config, default_args=defaults)
        for config, end in zip(configs, ends, strict=True)
    ]
    return [(each.index, each.key, each.place) for each in mismatches(built, run)]


def warm_up(end, **options):
    return dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=end, **options)


def cosine(begin=0, end=None, by_epoch=True, **options):
    ends = {} if end is None else dict(end=end)
    return dict(
        type='CosineAnnealingLR', begin=begin, by_epoch=by_epoch, **ends, **options
    )


def iters(*arguments, **options):
    return cosine(*arguments, by_epoch=False, **options)


def one_cycle(total_steps):
    options = dict(by_epoch=False, begin=20, eta_max=1, total_steps=total_steps)
    return dict(type='OneCycleLR', **options)


def momentum(begin, end):
    return dict(type='PolyMomentum', by_epoch=False, begin=begin, end=end)


CONVERTED = dict(convert_to_iter_based=True)


def steps(*milestones, **options):
    return dict(type='MultiStepLR', milestones=[*milestones], **options)


EPOCH_WARM_UP = dict(warm_up(2), by_epoch=True, **CONVERTED)
FITTING = {
    'warm-up-then-rest': (EPOCHS, [warm_up(400), cosine(begin=5)]),
    'warm-up-alone': (EPOCHS, [warm_up(400)]),
    'converted': (EPOCHS, [EPOCH_WARM_UP, cosine(2, 12, T_max=10, **CONVERTED)]),
    'iterations-of-epochs': (EPOCHS, [iters(0, 1250)]),
    'T_max-from-zero': (EPOCHS, [cosine(2, 12, T_max=12)]),
    'periodic': (EPOCHS, [cosine(0, 12, T_max=3)]),
    'steps-that-all-come': (EPOCHS, [steps(8, 11, end=36)]),
    'no-end': (EPOCHS, [dict(type='StepLR', step_size=3)]),
    'almost': (Length(300, 300_000, 1000), [cosine(end=299)]),
    'momentum-warm-up': (EPOCHS, [cosine(end=12), dict(type='LinearMomentum', end=3)]),
}
# Where a schedule ends that does not end with the run.
ELSEWHERE = {
    'cosine-late': (ITERS, [iters(0, 300)], (0, 'end', 300)),
    'cosine-early': (ITERS, [iters(0, 30)], (0, 'end', 30)),
    'T_max-late': (ITERS, [iters(T_max=300)], (0, 'T_max', 300)),
    'warm-up-late': (ITERS, [warm_up(1000)], (0, 'end', 1000)),
    'steps-late': (EPOCHS, [steps(27, 33, end=36)], (0, 'milestones', 33)),
    'steps-early': (EPOCHS, [steps(2, 3, end=4)], (0, 'end', 4)),
    'one-epoch-less': (EPOCHS, [cosine(end=11, **CONVERTED)], (0, 'end', 1100)),
    'poly': (ITERS, [dict(type='PolyLR', by_epoch=False, end=80)], (0, 'end', 80)),
    'linear': (ITERS, [warm_up(30, end_factor=0)], (0, 'end', 30)),
    'momentum': (
        EPOCHS,
        [cosine(), dict(type='CosineAnnealingMomentum', end=24)],
        (1, 'end', 24),
    ),
    'one-cycle': (ITERS, [warm_up(20), one_cycle(90)], (1, 'total_steps', 110)),
}


@pytest.mark.parametrize(('run', 'configs'), FITTING.values(), ids=FITTING)
def test_a_schedule_that_fits_is_left_alone(run, configs):
    assert found(configs, run) == []
    assert scaled(configs, run) == configs


@pytest.mark.parametrize('case', ELSEWHERE)
def test_a_schedule_that_ends_elsewhere_is_found_and_scaled(case):
    run, configs, said = ELSEWHERE[case]
    assert found(configs, run) == [said]
    assert found(scaled(configs, run), run) == []


THIRD, ALONE = [warm_up(20), iters(20, 60)], [warm_up(20), iters(0, 60)]
SCALINGS = {
    # At 0 the first would come before the first iteration.
    'early-step': (EPOCHS, [steps(1, 33, end=36)], [steps(1, 11, end=12)]),
    'warm-up-keeps-its-steps': (
        ITERS,
        [warm_up(20), iters(20, 3000, T_max=2980, eta_min=1e-5)],
        [warm_up(20), iters(20, 60, T_max=40, eta_min=1e-5)],
    ),
    'warm-up-takes-a-third': (ITERS, [warm_up(300), iters(300, 3000)], THIRD),
    'warm-up-outlasts-the-schedule': (ITERS, [warm_up(1000), iters(0, 900)], ALONE),
    'warm-up-alone-outlasts-a-run-in-epochs': (
        EPOCHS,
        [warm_up(2500), steps(8, 11, end=12)],
        [warm_up(400), steps(8, 11, end=12)],
    ),
    'a-third-of-one-epoch': (
        ONE_EPOCH,
        [dict(warm_up(20), by_epoch=True, **CONVERTED), cosine(20, 300, **CONVERTED)],
        [warm_up(16), iters(16, 50)],
    ),
    'two-steps-at-least': (
        FOUR_ITERS,
        [warm_up(20), iters(20, 300)],
        [warm_up(2), iters(2, 4)],
    ),
    'a-third-of-two-epochs': (
        TWO_EPOCHS,
        [dict(warm_up(5), by_epoch=True), steps(8, 11, end=12)],
        [warm_up(33), steps(1, 2, end=2)],
    ),
    'T_max-from-zero': (
        EPOCHS,
        [EPOCH_WARM_UP, cosine(2, 36, T_max=36)],
        [EPOCH_WARM_UP, cosine(2, 12, T_max=12)],
    ),
    'inside-a-warm-up': (
        ITERS,
        [warm_up(30), iters(15, 90)],
        [warm_up(20), iters(10, 60)],
    ),
    'a-later-rise-is-no-warm-up': (
        ITERS,
        [warm_up(30), warm_up(90, begin=60), iters(90, 180)],
        [warm_up(20), warm_up(36, begin=28), iters(36, 60)],
    ),
    'momentum-without-a-warm-up': (
        ITERS,
        [warm_up(20), iters(20, 120), momentum(12, 120)],
        [warm_up(20), iters(20, 60), momentum(6, 60)],
    ),
}


@pytest.mark.parametrize(
    ('run', 'configs', 'expected'), SCALINGS.values(), ids=SCALINGS
)
def test_a_warm_up_keeps_its_steps_and_the_rest_fills_the_run(run, configs, expected):
    assert scaled(configs, run) == expected


@pytest.mark.parametrize(
    ('run', 'config', 'message'),
    [
        (EPOCHS, steps(27, 33), 'give `end` to MultiStepLR'),
        (EPOCHS, dict(type='ExponentialLR', gamma=0.9, end=4), 'can scale Linear.*Exp'),
        (EPOCHS, 'a scheduler', 'needs param_scheduler as dicts, got str'),
        (ITERS, cosine(0, 300, **CONVERTED), 'counts epochs, to a run that counts it'),
    ],
    ids=['endless', 'unknown', 'built', 'epochs'],
)
def test_what_cannot_be_scaled_is_refused(run, config, message):
    with pytest.raises(ValueError, match=message):
        scaled([config], run)


def run_cosine(work_dir, max_iters, end, **options):
    """The learning rates of a run with a cosine to 0 at `end`."""
    begin = end // 4
    schedule = [warm_up(begin), iters(begin, end, T_max=end - begin)]
    options |= dict(max_iters=max_iters, param_scheduler=schedule)
    runner = make_runner(work_dir, **options)
    runner.train()
    return runner.message_hub.get_scalar('train/lr').data[0].tolist()


def test_a_run_says_that_its_schedule_does_not_fit(tmp_path, capsys):
    said = 'param_scheduler.1.end: CosineAnnealingLR ends at iteration {}, but the run '
    run_cosine(tmp_path / 'a', 8, 8)
    assert 'but the run ends at' not in capsys.readouterr().out
    run_cosine(tmp_path / 'a', 16, 16, resume=True)
    told = capsys.readouterr().out
    assert said.format(8) + 'ends at iteration 16 (train_cfg.max_iters)' in told
    assert 'the rest of the run trains at the last value' in told


def test_a_run_that_scales_its_schedule_resumes(tmp_path, capsys):
    keep_all = dict(type='CheckpointHook', interval=1, by_epoch=False)
    options = dict(scale_schedule=True, default_hooks=dict(checkpoint=keep_all))
    whole = run_cosine(tmp_path / 'a', 8, 40, **options)
    said = capsys.readouterr().out
    assert 'but the run ends at' not in said
    assert '.1 (CosineAnnealingLR): begin 10 -> 2, end 40 -> 8, T_max 30 -> 6\n' in said
    assert whole[:2] == pytest.approx([0.01, 0.1])  # one step of warm-up
    options.update(load_from=str(tmp_path / 'a/iter_4.pth'), resume=True)
    assert run_cosine(tmp_path / 'b', 8, 40, **options) == whole
    run_cosine(tmp_path / 'b', 16, 40, **options)
    said = capsys.readouterr().out
    assert 'ends at iteration 8, but the run ends at' in said
    assert 'scale_schedule=True' not in said  # it is on
