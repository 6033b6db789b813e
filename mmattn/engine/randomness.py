"""Random numbers that depend on the position in a run and on nothing before it.

A generator that is seeded once per run advances with everything that draws from it:
workers that prefetch, a validation, a restart. Here each place that draws numbers has a
key, and its generators are seeded again from the run's seed and that key.
"""

import random
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.hooks import Hook

DATA, TRAIN, VAL, TEST = range(4)  # first number of a key: the purpose


def _seeds(key: tuple[int, ...]) -> tuple[int, list[int], int]:
    """Seed python, numpy and torch from one well-mixed state."""
    words = np.random.SeedSequence(key).generate_state(8).tolist()
    return words[0], words[1:5], words[6] << 32 | words[7]


@contextmanager
def seeded(*key: int):
    """Seed the CPU generators of Python, numpy and torch; restore them at the end."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    for_python, for_numpy, for_torch = _seeds(key)
    random.seed(for_python)
    np.random.seed(for_numpy)
    # torch.manual_seed would also walk the stack for CUDA, in each worker and sample.
    torch.default_generator.manual_seed(for_torch)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed_all(*key: int):
    """Seed the generators of Python, numpy and every torch device from `key`."""
    for_python, for_numpy, for_torch = _seeds(key)
    random.seed(for_python)
    np.random.seed(for_numpy)
    torch.manual_seed(for_torch)


def shared_seed(seed: int, rank: int, diff_rank_seed: bool) -> int:
    """Return the seed that all ranks share; mmengine may have added the rank."""
    return seed - rank if diff_rank_seed else seed


class RandomnessHook(Hook):
    """Seed the main process before each iteration.

    Drop path, mixup and the sampling of boxes draw from it. The key is the iteration
    and the rank. So ranks drop different paths, and a resumed run draws the same
    numbers as the uninterrupted one.
    """

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self._seed(runner, TRAIN, runner.iter)

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        self._seed(runner, VAL, batch_idx)

    def before_test_iter(self, runner, batch_idx, data_batch=None):
        self._seed(runner, TEST, batch_idx)

    def _seed(self, runner, purpose: int, number: int):
        seed_all(purpose, runner.shared_seed, runner.rank, number)
