"""A run that is stopped and resumed ends bitwise where the uninterrupted one ends."""

import random
from uuid import uuid4

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.runner import find_latest_checkpoint
from torch import nn
from torch.utils.data import DataLoader

from mmattn.engine import Runner

NUM_SAMPLES, BATCH_SIZE, EPOCHS = 17, 3, 3
BATCHES = -(-NUM_SAMPLES // BATCH_SIZE)
ITERATIONS = EPOCHS * BATCHES


class Augmented(BaseDataset):
    """Points that every generator moves."""

    def __init__(self):
        super().__init__(serialize_data=False)  # which would collect all garbage

    def load_data_list(self):
        return [dict(point=[i / 10, 1 - i / 10]) for i in range(NUM_SAMPLES)]

    def __getitem__(self, index):
        point = torch.tensor(self.pipeline(self.get_data_info(index))['point'])
        return point + random.random() + np.random.random() * torch.rand(2)


class Net(BaseModel):
    """Draws from every generator in its forward pass; its loss never settles."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
        )

    def forward(self, inputs, mode='tensor'):
        out = self.layers(torch.stack(inputs))
        if mode == 'predict':
            return list(out)
        target = random.random() + np.random.random()
        return dict(loss=(out - target).square().mean())

    def data_preprocessor(self, data, training=False):
        return dict(inputs=data)


class Noisy(BaseMetric):
    """Draws too, so that a validation moves the generators."""

    def process(self, data_batch, data_samples):
        self.results += [sample.item() + random.random() for sample in data_samples]

    def compute_metrics(self, results):
        return dict(score=float(np.mean(results)), spread=float(np.std(results)))


class Stopped(Exception):
    """Stand for the death of the process."""


class StopAt(Hook):
    priority = 'LOWEST'

    def __init__(self, moment, number):
        self.moment, self.number = moment, number

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.moment == 'train' and runner.iter + 1 == self.number:
            raise Stopped

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if self.moment == 'val' and runner.iter == self.number:
            raise Stopped


class Record(Hook):
    """Record each iteration as an outside observer sees it."""

    priority = 'LOWEST'

    def __init__(self):
        self.seen = {}

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.seen[runner.iter] = batch_idx, torch.stack(data_batch), outputs['loss']


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(DATASETS.module_dict, 'Augmented', Augmented)
    monkeypatch.setitem(METRICS.module_dict, 'Noisy', Noisy)
    monkeypatch.setitem(ROOT_MODELS.module_dict, 'Net', Net)


EPOCH_LOOP = dict(by_epoch=True, max_epochs=EPOCHS, val_interval=1)
ITER_LOOP = dict(by_epoch=False, max_iters=ITERATIONS, val_interval=5)


def make_runner(
    work_dir,
    *,
    loop=EPOCH_LOOP,
    sampler='DefaultSampler',
    num_workers=0,
    batch_size=BATCH_SIZE,
    checkpoint=None,
    seed=0,
    hooks=(),
    resume=False,
    **kwargs,
):
    """A runner of mmengine's that trains `Net` for 18 iterations."""
    loader = dict(dataset=dict(type='Augmented'), num_workers=num_workers)
    settings = dict(
        model=dict(type='Net'),
        train_dataloader=dict(
            loader, batch_size=batch_size, sampler=dict(type=sampler, shuffle=True)
        ),
        val_dataloader=dict(
            loader, batch_size=3, sampler=dict(type='DefaultSampler', shuffle=False)
        ),
        val_cfg=dict(),
        val_evaluator=dict(type='Noisy'),
        optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.01)),
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10),
            dict(type='MultiStepLR', milestones=[1, 2], by_epoch=True),
        ],
        default_hooks=dict(
            checkpoint=checkpoint or dict(type='CheckpointHook', interval=1),
            logger=dict(type='LoggerHook', interval=100),
        ),
        randomness=dict(seed=seed),
        log_level='WARNING',
        env_cfg=dict(),
    )
    return Runner(
        work_dir=str(work_dir),
        train_cfg=loop,
        custom_hooks=list(hooks),
        resume=resume,
        experiment_name=str(uuid4()),
        **settings | kwargs,
    )


def final_state(runner):
    """All that the end of a run should have in common with another's."""
    return dict(
        seed=runner.seed,
        model=runner.model.state_dict(),
        optimizer=runner.optim_wrapper.state_dict(),
        schedulers=[s.state_dict() for s in runner.param_schedulers],
        scores=runner.message_hub.get_scalar('val/score').data[0].tolist(),
    )


def assert_bitwise_equal(state, expected, path=''):
    if isinstance(expected, torch.Tensor):
        assert torch.equal(state, expected), path
    elif isinstance(expected, dict):
        assert state.keys() == expected.keys(), path
        for key in expected:
            assert_bitwise_equal(state[key], expected[key], f'{path}.{key}')
    elif isinstance(expected, (list, tuple)):
        assert len(state) == len(expected), path
        for i, (one, other) in enumerate(zip(state, expected, strict=True)):
            assert_bitwise_equal(one, other, f'{path}[{i}]')
    else:
        assert state == expected, path


def train_with_stops(work_dir, stops, *, hooks=(), **options):
    """The state at the end, and what was seen of each iteration that counts."""
    seen = {}
    for i, stop in enumerate([*stops, None]):
        record = Record()
        stopper = [] if stop is None else [StopAt(*stop)]
        runner = make_runner(
            work_dir, hooks=[record, *hooks, *stopper], resume=i > 0, **options
        )
        try:
            runner.train()
            assert stop is None, 'the run was not stopped'
        except Stopped:
            pass
        seen.update(record.seen)
        # Workers end at once when their iterator goes, not if it waits for the garbage
        # collector, which finalizes their queues first.
        vars(runner.train_loop).pop('dataloader_iterator', None)
    return final_state(runner), seen


EVERY_EPOCH = dict(type='CheckpointHook', interval=1)
EVERY_4 = dict(type='CheckpointHook', interval=4, by_epoch=False)
EVERY_6 = dict(type='CheckpointHook', interval=6, by_epoch=False)
CASES = {
    'epochs': dict(checkpoint=EVERY_EPOCH),
    'inside-epochs': dict(checkpoint=EVERY_4),
    'last-of-epoch': dict(checkpoint=EVERY_6),
    'iterations': dict(loop=ITER_LOOP, sampler='InfiniteSampler', checkpoint=EVERY_4),
    'iterations-of-passes': dict(loop=ITER_LOOP, checkpoint=EVERY_4),
    # Each epoch and each validation starts processes, which costs a second.
    'workers': dict(
        checkpoint=EVERY_4, num_workers=2, loop=dict(EPOCH_LOOP, val_interval=EPOCHS)
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_stopped_twice_and_resumed(tmp_path, case):
    options = CASES[case]
    straight, expected = train_with_stops(tmp_path / 'a', [], **options)
    stops = [('train', 7), ('train', 15)][: 1 if case == 'workers' else 2]
    resumed, seen = train_with_stops(tmp_path / 'b', stops, **options)
    assert_bitwise_equal(resumed, straight)
    assert_bitwise_equal(seen, expected)


FIVE = dict(optimizer=dict(type='Adam', lr=0.01), accumulative_counts=5)
BEST = dict(save_best='score', rule='less')
TWO_BEST = dict(save_best=['score', 'spread'], rule=['less', 'greater'])
SWA, SEVEN_EPOCHS = 'StochasticWeightAverage', dict(EPOCH_LOOP, max_epochs=7)
PLATEAU = dict(type='ReduceOnPlateauLR', monitor='score', rule='less', patience=0)
NEVER_BETTER = dict(
    type='EarlyStoppingHook', monitor='score', rule='greater', min_delta=99, patience=3
)
SWITCH = dict(
    type='mmdet.PipelineSwitchHook',
    switch_epoch=2,
    switch_pipeline=[lambda info: dict(point=[0.0, 1.0])],
)


class Counts(Hook):
    """Change the model at each fifth iteration."""

    count = 0

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.count += 1
        if self.count % 5 == 0:
            runner.model.layers[0].bias.data.add_(1)

    def state_dict(self):
        return dict(count=self.count)

    def load_state_dict(self, state):
        self.count = state['count']


# Where a run stops, and its options.
EXTRAS = {
    'ema': (('train', 15), dict(hooks=[dict(type='EMAHook', update_buffers=True)])),
    'drawn-seed': (('train', 15), dict(seed=None)),
    'accumulation': (('train', 15), dict(optim_wrapper=FIVE, checkpoint=EVERY_4)),
    'plateau': (('val', 12), dict(param_scheduler=[PLATEAU])),
    'best': (('val', 12), dict(checkpoint=EVERY_EPOCH | BEST)),
    'two-best': (('train', 15), dict(checkpoint=EVERY_4 | TWO_BEST)),
    'swa': (('train', 15), dict(hooks=[dict(type='EMAHook', ema_type=SWA)])),
    'stops-early': (('train', 20), dict(loop=SEVEN_EPOCHS, hooks=[NEVER_BETTER])),
    'switch': (('train', 15), dict(checkpoint=EVERY_4, hooks=[SWITCH])),
    'own-hook': (('train', 15), dict(checkpoint=EVERY_4, hooks=[dict(type=Counts)])),
    'validated-from-2': (('train', 7), dict(loop=dict(EPOCH_LOOP, val_begin=2))),
    'validated-at-2': (('val', 12), dict(loop=dict(EPOCH_LOOP, val_begin=2))),
    'validated-at-2-and-3': (('val', 18), dict(loop=dict(EPOCH_LOOP, val_interval=2))),
    'rank-in-seed': (('train', 15), dict(randomness=dict(seed=0, diff_rank_seed=True))),
}


@pytest.mark.parametrize('case', EXTRAS)
def test_what_else_a_run_carries(tmp_path, case):
    stop, options = EXTRAS[case]
    resumed, _ = train_with_stops(tmp_path / 'b', [stop], **options)
    if case == 'drawn-seed':
        options = dict(seed=resumed['seed'])
    straight, _ = train_with_stops(tmp_path / 'a', [], **options)
    assert_bitwise_equal(resumed, straight)
    saved = [
        torch.load(find_latest_checkpoint(tmp_path / run), weights_only=False)
        for run in 'ab'
    ]
    assert_bitwise_equal(saved[0].get('ema_state_dict'), saved[1].get('ema_state_dict'))
    assert ('ema_state_dict' in saved[0]) == (case in ('ema', 'swa'))
    best = [sorted(p.name for p in (tmp_path / run).glob('best*')) for run in 'ab']
    assert best[0] == best[1]
    assert len(best[0]) == {'best': 1, 'two-best': 2}.get(case, 0)
    assert len(straight['scores']) == 4 or case != 'stops-early'


MADE = DataLoader(Augmented(), batch_size=BATCH_SIZE, collate_fn=list)
CHANGED = {
    'world-size': (dict(world_size=2), {}, 'world_size was 2, is 1. The epoch'),
    'batch-size': ({}, dict(batch_size=6), 'batches_per_epoch was 6, is 3. The'),
    # Its order is not ours to know, so what it has yielded cannot be skipped.
    'made-by-hand': ({}, dict(train_dataloader=MADE), 'not built from a config: the'),
}


@pytest.mark.parametrize(('meta', 'options', 'said'), CHANGED.values(), ids=CHANGED)
def test_other_data_is_announced_and_the_epoch_starts_over(
    tmp_path, capsys, meta, options, said
):
    with pytest.raises(Stopped):
        make_runner(tmp_path, hooks=[StopAt('train', 5)], checkpoint=EVERY_4).train()
    path = tmp_path / 'iter_4.pth'
    checkpoint = torch.load(path, weights_only=False)
    checkpoint['meta'].update(meta)
    torch.save(checkpoint, path)
    record = Record()
    runner = make_runner(
        tmp_path, resume=True, checkpoint=EVERY_4, hooks=[record], **options
    )
    runner.train()
    assert said in capsys.readouterr().out
    assert runner.epoch == EPOCHS
    batch_indices = [batch_idx for batch_idx, *_ in record.seen.values()]
    assert batch_indices == [*range(len(runner.train_dataloader))] * EPOCHS


def test_weights_alone_resume_nothing(tmp_path):
    make_runner(tmp_path / 'a', checkpoint=EVERY_4).train()
    record = Record()
    weights = str(tmp_path / 'a' / 'iter_4.pth')
    runner = make_runner(tmp_path / 'b', load_from=weights, hooks=[record], seed=1)
    runner.train()
    assert len(record.seen) == ITERATIONS
    assert runner.train_dataloader.batch_sampler.seed == 1
