"""Schedules end where the run ends; if they do not, a warning or a fix follows.

`tests/test_configs.py` looks at those of all our configs.
"""

import pytest
import torch

pytest.importorskip('mmengine')
from mmengine.registry import PARAM_SCHEDULERS
from tiny_run import make_runner

from mmattn.engine.schedule import Length, mismatches, scaled
from mmattn.models import IViT

EPOCHS = Length(epochs=12, iters=1200, epoch_length=100)
ITERS = Length(epochs=1, iters=60, epoch_length=0, by_epoch=False)


def build(configs, run):
    """As mmengine's runner does."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
    defaults = dict(optimizer=optimizer, epoch_length=run.epoch_length or run.iters)
    return [
        PARAM_SCHEDULERS.build(
            dict(config, end=config.get('end', _end(config, run))),
            default_args=defaults,
        )
        for config in configs
    ]


def _end(config, run):
    return run.epochs if config.get('by_epoch', True) else run.iters


def found(configs, run):
    return [
        (mismatch.index, mismatch.key, mismatch.place)
        for mismatch in mismatches(build(configs, run), run)
    ]


def warm_up(end, **options):
    return dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=end, **options)


def cosine(begin=0, end=None, by_epoch=True, **options):
    ends = {} if end is None else dict(end=end)
    return dict(
        type='CosineAnnealingLR', begin=begin, by_epoch=by_epoch, **ends, **options
    )


CONVERTED = dict(convert_to_iter_based=True)
FITTING = {
    'defaults': (EPOCHS, [cosine()]),
    'warm-up-then-rest': (EPOCHS, [warm_up(500), cosine(begin=5)]),
    'warm-up-alone': (EPOCHS, [warm_up(500)]),
    'whole-list': (
        EPOCHS,
        [
            cosine(end=10, T_max=10),
            dict(type='ConstantLR', by_epoch=True, factor=1.0, begin=10, end=12),
        ],
    ),
    'converted': (
        EPOCHS,
        [
            dict(warm_up(2), by_epoch=True, **CONVERTED),
            cosine(2, 12, T_max=10, **CONVERTED),
        ],
    ),
    'iterations-of-epochs': (EPOCHS, [cosine(0, 1250, by_epoch=False)]),
    'T_max-from-zero': (EPOCHS, [cosine(2, 12, T_max=12)]),
    'periodic': (EPOCHS, [cosine(0, 12, T_max=3)]),
    'steps': (
        EPOCHS,
        [warm_up(500), dict(type='MultiStepLR', milestones=[8, 11], end=12)],
    ),
    'steps-that-all-come': (
        EPOCHS,
        [dict(type='MultiStepLR', milestones=[8, 11], end=36)],
    ),
    'no-end': (EPOCHS, [dict(type='StepLR', step_size=3)]),
    'almost': (Length(300, 300_000, 1000), [cosine(end=299)]),
    'momentum-warm-up': (
        EPOCHS,
        [
            cosine(end=12),
            dict(type='LinearMomentum', start_factor=0.5, by_epoch=True, end=3),
        ],
    ),
}
ELSEWHERE = {
    'cosine-late': (ITERS, [cosine(0, 300, by_epoch=False)], [(0, 'end', 300)]),
    'cosine-early': (ITERS, [cosine(0, 30, by_epoch=False)], [(0, 'end', 30)]),
    'T_max-late': (ITERS, [cosine(by_epoch=False, T_max=300)], [(0, 'T_max', 300)]),
    'after-warm-up': (
        ITERS,
        [warm_up(20), cosine(20, 300, by_epoch=False, T_max=280)],
        [(1, 'end', 300)],
    ),
    'warm-up-late': (ITERS, [warm_up(1000)], [(0, 'end', 1000)]),
    'steps-late': (
        EPOCHS,
        [dict(type='MultiStepLR', milestones=[27, 33], end=36)],
        [(0, 'milestones', 33)],
    ),
    'steps-early': (
        EPOCHS,
        [dict(type='MultiStepLR', milestones=[2, 3], end=4)],
        [(0, 'end', 4)],
    ),
    'converted': (
        EPOCHS,
        [dict(warm_up(2), by_epoch=True, **CONVERTED), cosine(2, 36, **CONVERTED)],
        [(1, 'end', 3600)],
    ),
    'one-epoch-less': (EPOCHS, [cosine(end=11, **CONVERTED)], [(0, 'end', 1100)]),
    'poly': (
        ITERS,
        [dict(type='PolyLR', by_epoch=False, end=80)],
        [(0, 'end', 80)],
    ),
    'linear-decay': (
        ITERS,
        [dict(type='LinearLR', start_factor=1, end_factor=0, by_epoch=False, end=30)],
        [(0, 'end', 30)],
    ),
    'momentum': (
        EPOCHS,
        [cosine(), dict(type='CosineAnnealingMomentum', by_epoch=True, end=24)],
        [(1, 'end', 24)],
    ),
    'one-cycle': (
        ITERS,
        [dict(type='OneCycleLR', by_epoch=False, eta_max=1.0, total_steps=90)],
        [(0, 'total_steps', 90)],
    ),
}


@pytest.mark.parametrize(('run', 'configs'), FITTING.values(), ids=FITTING)
def test_a_schedule_that_fits_is_left_alone(run, configs):
    assert found(configs, run) == []
    assert scaled(configs, run) == configs


@pytest.mark.parametrize(('run', 'configs', 'said'), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_schedule_that_ends_elsewhere_is_found(run, configs, said):
    assert found(configs, run) == said


SCALED = {case: ELSEWHERE[case][:2] for case in ELSEWHERE if case != 'warm-up-late'}


@pytest.mark.parametrize(('run', 'configs'), SCALED.values(), ids=SCALED)
def test_a_scaled_schedule_fits(run, configs):
    assert found(scaled(configs, run), run) == []


STEPS = dict(type='MultiStepLR', milestones=[27, 33], end=36, gamma=0.1)
EARLY = dict(STEPS, milestones=[1, 33])  # at 0 it would come before the first step
SCALINGS = {
    'steps': (EPOCHS, [STEPS], [dict(STEPS, milestones=[9, 11], end=12)]),
    'early-step': (EPOCHS, [EARLY], [dict(EARLY, milestones=[1, 11], end=12)]),
    'warm-up-keeps-its-steps': (
        ITERS,
        [warm_up(20), cosine(20, 3000, by_epoch=False, T_max=2980, eta_min=1e-5)],
        [warm_up(20), cosine(20, 60, by_epoch=False, T_max=40, eta_min=1e-5)],
    ),
    'to-a-longer-run': (
        EPOCHS,
        [warm_up(50), cosine(0, 6, T_max=6)],
        [warm_up(50), cosine(0, 12, T_max=12)],
    ),
    'warm-up-takes-a-third': (
        ITERS,
        [warm_up(300), cosine(300, 3000, by_epoch=False)],
        [warm_up(20), cosine(20, 60, by_epoch=False)],
    ),
    'warm-up-took-half': (
        ITERS,
        [warm_up(100), cosine(100, 200, by_epoch=False)],
        [warm_up(30), cosine(30, 60, by_epoch=False)],
    ),
    'T_max-from-zero': (
        EPOCHS,
        [dict(warm_up(2), by_epoch=True, **CONVERTED), cosine(2, 36, T_max=36)],
        [dict(warm_up(2), by_epoch=True, **CONVERTED), cosine(2, 12, T_max=12)],
    ),
    'warm-up-in-iterations-of-a-schedule-in-epochs': (
        EPOCHS,
        [warm_up(900), cosine(9, 36)],
        [warm_up(400), cosine(4, 12)],
    ),
    'one-cycle-after-a-warm-up': (
        ITERS,
        [
            warm_up(20),
            dict(
                type='OneCycleLR', by_epoch=False, begin=20, eta_max=1, total_steps=90
            ),
        ],
        [
            warm_up(20),
            dict(
                type='OneCycleLR', by_epoch=False, begin=20, eta_max=1, total_steps=40
            ),
        ],
    ),
    'a-later-rise-is-no-warm-up': (
        ITERS,
        [
            warm_up(30),
            warm_up(90, begin=60),
            cosine(90, 180, by_epoch=False),
        ],
        [
            warm_up(20),
            warm_up(36, begin=28),
            cosine(36, 60, by_epoch=False),
        ],
    ),
    'momentum-without-a-warm-up': (
        ITERS,
        [
            warm_up(20),
            cosine(20, 120, by_epoch=False),
            dict(type='PolyMomentum', by_epoch=False, begin=12, end=120),
        ],
        [
            warm_up(20),
            cosine(20, 60, by_epoch=False),
            dict(type='PolyMomentum', by_epoch=False, begin=6, end=60),
        ],
    ),
}


@pytest.mark.parametrize(
    ('run', 'configs', 'expected'), SCALINGS.values(), ids=SCALINGS
)
def test_a_warm_up_keeps_its_steps_and_the_rest_fills_the_run(run, configs, expected):
    assert scaled(configs, run) == expected


def test_a_warm_up_that_nothing_follows_stays():
    cut_off = [warm_up(100), cosine(100, 300, by_epoch=False)]
    assert found(cut_off, ITERS) == [(0, 'end', 100), (1, 'end', 300)]
    alone = [warm_up(100), cosine(by_epoch=False)]
    assert scaled(alone, ITERS) == alone


def test_epochs_are_not_scaled_to_iterations():
    with pytest.raises(ValueError, match='counts epochs, to a run that counts iter'):
        scaled([cosine(0, 300, **CONVERTED)], ITERS)
    one_epoch = Length(epochs=1, iters=50, epoch_length=0)
    assert scaled([cosine(0, 300, **CONVERTED)], one_epoch) == [
        cosine(0, 1, **CONVERTED)
    ]


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        (dict(type='MultiStepLR', milestones=[27, 33]), 'give `end` to MultiStepLR'),
        (dict(type='ExponentialLR', gamma=0.9, end=4), 'can scale Linear.*Exponential'),
        ('a scheduler', 'needs param_scheduler as dicts, got str'),
    ],
    ids=['endless', 'unknown', 'built'],
)
def test_what_cannot_be_scaled_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        scaled([config], EPOCHS)


def run_cosine(work_dir, max_iters, end, **options):
    """The learning rates of a run with a cosine to 0 at `end`."""
    runner = make_runner(
        work_dir,
        train_cfg=dict(
            type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100
        ),
        param_scheduler=[
            warm_up(end // 4),
            cosine(end // 4, end, by_epoch=False, T_max=end - end // 4),
        ],
        **options,
    )
    runner.train()
    return runner.message_hub.get_scalar('train/lr').data[0].tolist()


SAID = (
    'param_scheduler.1.end: CosineAnnealingLR ends at iteration {}, but the run ends at'
)


def test_a_run_says_that_its_schedule_does_not_fit(tmp_path, capsys):
    run_cosine(tmp_path / 'a', 8, 8)
    assert 'but the run ends at' not in capsys.readouterr().out
    cut_off = run_cosine(tmp_path / 'b', 8, 40)
    said = capsys.readouterr().out
    assert SAID.format(40) + ' iteration 8 (train_cfg.max_iters)' in said
    assert max(cut_off) == cut_off[-1]  # still in its warm-up
    run_cosine(tmp_path / 'a', 16, 16, resume=True)
    said = capsys.readouterr().out
    assert SAID.format(8) + ' iteration 16' in said
    assert 'the rest of the run trains at the last value' in said


def test_a_run_scales_its_schedule(tmp_path, capsys):
    expected = run_cosine(tmp_path / 'a', 12, 12)
    assert 'scale_schedule: ' not in capsys.readouterr().out
    assert run_cosine(tmp_path / 'b', 12, 16, scale_schedule=True) != expected
    said = capsys.readouterr().out
    assert 'but the run ends at' not in said
    assert 'scale_schedule: param_scheduler.0 (LinearLR): end 4\n' in said
    assert (
        'scale_schedule: param_scheduler.1 (CosineAnnealingLR): begin 4, end 16 -> 12, '
        'T_max 12 -> 8\n'
    ) in said


def test_a_run_that_scales_its_schedule_resumes(tmp_path):
    keep_all = dict(type='CheckpointHook', interval=1, by_epoch=False)
    options = dict(scale_schedule=True, default_hooks=dict(checkpoint=keep_all))
    whole = run_cosine(tmp_path / 'a', 8, 40, **options)
    options.update(load_from=str(tmp_path / 'a/iter_4.pth'), resume=True)
    assert run_cosine(tmp_path / 'b', 8, 40, **options) == whole


def train_ivit(configs):
    """Return the last losses of an IViT that learns where a square is."""
    torch.manual_seed(0)
    backbone, head = IViT('nano'), torch.nn.Linear(256, 16)
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=6e-3, weight_decay=0.05)
    schedulers = [
        PARAM_SCHEDULERS.build(dict(config), default_args=dict(optimizer=optimizer))
        for config in configs
    ]
    losses = []
    for _ in range(ITERS.iters):
        images, cells = torch.rand(16, 3, 32, 32) - 1, torch.randint(16, (16,))
        for image, cell in zip(images, cells, strict=True):
            y, x = 8 * (cell // 4) + 2, 8 * (cell % 4) + 2
            image[:, y : y + 4, x : x + 4] += 1
        scores = head(backbone(images)[-1].mean((2, 3)))
        losses.append(torch.nn.functional.cross_entropy(scores, cells))
        optimizer.zero_grad()
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        for part in (optimizer, *schedulers):
            part.step()
    return torch.stack(losses[-8:]).mean().item()


@pytest.mark.slow
def test_a_transformer_needs_the_warm_up_that_scaling_keeps():
    """Proportions would leave 2 of 20 steps: then it learns nothing (ln 16 = 2.77)."""
    configs = [warm_up(20), cosine(20, 600, by_epoch=False, T_max=580)]
    proportional = [warm_up(2), cosine(2, 60, by_epoch=False, T_max=58)]
    assert train_ivit(scaled(configs, ITERS)) < 0.5 < 2.5 < train_ivit(proportional)
