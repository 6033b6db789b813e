"""The main process draws numbers that depend on the iteration alone."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')
from mmattn.engine.randomness import RandomnessHook

MOMENTS = 'before_train_iter', 'before_val_iter', 'before_test_iter'


def drawn(moment='before_train_iter', number=3, rank=0, seed=0):
    """A number of each generator, after the hook has been called."""
    runner = SimpleNamespace(iter=number, shared_seed=seed, rank=rank)
    getattr(RandomnessHook(), moment)(runner, number)
    return random.random(), np.random.random(), torch.rand(()).item()


@pytest.fixture(autouse=True)
def generators_as_they_were():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.mark.parametrize('moment', MOMENTS)
def test_a_place_has_the_same_numbers_each_time(moment):
    assert drawn(moment) == drawn(moment)


@pytest.mark.parametrize('moment', MOMENTS)
@pytest.mark.parametrize('other', [dict(rank=1), dict(number=4), dict(seed=1)], ids=str)
def test_another_rank_iteration_or_seed_has_others(moment, other):
    pairs = zip(drawn(moment), drawn(moment, **other), strict=True)
    assert all(one != another for one, another in pairs)


def test_training_validation_and_test_have_others():
    assert len({number for moment in MOMENTS for number in drawn(moment)}) == 9
