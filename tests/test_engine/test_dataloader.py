"""Data is a function of seed, rank and position, whoever loads it and whenever."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset, DefaultSampler
from mmengine.registry import DATASETS

from mmattn.engine import Runner
from mmattn.engine.data.loaders import EndlessBatches
from mmattn.engine.randomness import RandomnessHook


class Noise(BaseDataset):
    """Index, then one number of each generator; counts what it loads."""

    def __init__(self, length=10):
        self.length = length
        self.loaded = 0
        super().__init__(metainfo=dict(classes=('noise',)), serialize_data=False)

    def load_data_list(self):
        sizes = [(2, 1), (1, 2)]
        return [
            dict(width=w, height=h)
            for w, h in itertools.islice(itertools.cycle(sizes), self.length)
        ]

    def __getitem__(self, index):
        self.loaded += 1
        numbers = index, random.random(), np.random.random(), torch.rand(()).item()
        return torch.tensor(numbers, dtype=torch.float64)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(DATASETS.module_dict, 'Noise', Noise)


def build(
    seed=0, num_workers=0, sampler='DefaultSampler', length=10, batch_size=2, **kwargs
):
    cfg = dict(
        dataset=dict(type='Noise', length=length),
        sampler=dict(type=sampler, shuffle=True),
        num_workers=num_workers,
        batch_size=batch_size,
        **{'collate_fn': dict(type='default_collate'), **kwargs},
    )
    return Runner.build_dataloader(cfg, seed=seed)


def states():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def two_passes(loader):
    return torch.stack([batch for _ in range(2) for batch in loader])


@pytest.fixture(scope='module')
def expected():
    DATASETS.module_dict['Noise'] = Noise
    return two_passes(build())


@pytest.mark.parametrize(('num_workers', 'persistent'), [(1, True), (2, False)])
def test_workers_change_nothing(expected, num_workers, persistent):
    loader = build(num_workers=num_workers, persistent_workers=persistent)
    assert torch.equal(two_passes(loader), expected)


def test_no_two_samples_share_numbers(expected):
    numbers = torch.cat([expected, two_passes(build(seed=1))])[..., 1:]
    assert len(numbers.unique()) == numbers.numel() == 2 * 20 * 3


def test_ranks_draw_different_numbers_of_one_order(monkeypatch, expected):
    monkeypatch.setattr('mmattn.engine.data.loaders.get_dist_info', lambda: (1, 2))
    same_order = two_passes(build())
    assert torch.equal(same_order[..., 0], expected[..., 0])
    assert not (same_order[..., 1:] == expected[..., 1:]).any()
    sampler = dict(type='DefaultSampler', shuffle=True)
    cfg = dict(dataset=dict(type='Noise'), sampler=sampler, batch_size=2)
    added = Runner.build_dataloader(cfg, seed=1, diff_rank_seed=True)
    assert added.batch_sampler.seed == added.batch_sampler.sampler.seed == 0


def test_the_generators_of_the_process_are_left_alone():
    batches = iter(build())
    before = states()
    next(batches)
    assert repr(states()) == repr(before)


@pytest.mark.parametrize(('num_workers', 'at'), [(0, 1), (0, 7), (2, 4)])
def test_resuming_yields_the_rest_and_loads_nothing_else(expected, at, num_workers):
    loader = build(num_workers=num_workers)
    loader.batch_sampler.resume(at=at)
    assert torch.equal(two_passes(loader), expected[at:])
    if num_workers == 0:
        assert loader.dataset.loaded == 2 * len(expected[at:])


@pytest.mark.parametrize(
    ('sampler', 'at'),
    [('DefaultSampler', 0), ('DefaultSampler', 12), ('InfiniteSampler', 5)],
)
def test_endless_batches_start_anywhere(sampler, at):
    batches = EndlessBatches(build(sampler=sampler))
    expected = torch.stack(list(itertools.islice(batches, 15)))
    loader = build(sampler=sampler)
    batches = EndlessBatches(loader)
    batches.skip_iter(at)
    rest = torch.stack(list(itertools.islice(batches, 15 - at)))
    assert torch.equal(rest, expected[at:])
    assert loader.dataset.loaded == 2 * (15 - at)
    orders = expected[:5, :, 0].flatten(), expected[5:10, :, 0].flatten()
    assert set(orders[0].tolist()) == set(orders[1].tolist()) == set(range(10))
    assert not torch.equal(*orders)  # each pass is shuffled anew


def test_the_loader_shows_data_set_and_sampler_of_the_config():
    """Hooks switch the pipeline of the one and ask for the seed of the other."""
    loader = build(seed=5)
    assert type(loader.dataset) is Noise
    assert isinstance(loader.sampler, DefaultSampler)
    assert loader.sampler.seed == 5
    loader.batch_sampler.reseed(6)
    assert loader.sampler is loader.batch_sampler.sampler
    assert loader.sampler.seed == 6


def test_num_batch_per_epoch_is_of_each_rank(monkeypatch):
    for module in ('mmattn.engine.data.loaders', 'mmengine.dataset.sampler'):
        monkeypatch.setattr(f'{module}.get_dist_info', lambda: (1, 2))
    loader = build(num_batch_per_epoch=2)
    assert len(loader) == 2
    drawn = set(two_passes(loader)[..., 0].flatten().tolist())
    assert len(drawn) == 4 and drawn <= set(range(8))  # of both ranks


def test_an_unknown_function_is_named():
    with pytest.raises(ValueError, match="'no_such_collate'"):
        build(collate_fn=dict(type='no_such_collate'))


def test_mmdets_batch_sampler_groups_and_resumes():
    kwargs = dict(batch_sampler=dict(type='mmdet.AspectRatioBatchSampler'))
    expected = list(build(**kwargs))
    assert all(len(set((batch[:, 0] % 2).tolist())) == 1 for batch in expected[:4])
    loader = build(**kwargs)
    loader.batch_sampler.resume(at=2)
    rest = list(loader)
    assert len(rest) == 3
    assert all(map(torch.equal, rest, expected[2:]))


MOMENTS = 'before_train_iter', 'before_val_iter', 'before_test_iter'


def drawn(moment='before_train_iter', number=3, rank=0, seed=0):
    """A number of each generator, after the hook has been called."""
    runner = SimpleNamespace(iter=number, shared_seed=seed, rank=rank)
    getattr(RandomnessHook(), moment)(runner, number)
    return random.random(), np.random.random(), torch.rand(()).item()


@pytest.fixture(autouse=True)
def generators_as_they_were():
    before = states()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


@pytest.mark.parametrize('moment', MOMENTS)
def test_numbers_depend_on_rank_iteration_and_seed_alone(moment):
    assert drawn(moment) == drawn(moment)
    for other in (dict(rank=1), dict(number=4), dict(seed=1)):
        assert not {*drawn(moment)} & {*drawn(moment, **other)}


def test_training_validation_and_test_have_others():
    assert len({number for moment in MOMENTS for number in drawn(moment)}) == 9
