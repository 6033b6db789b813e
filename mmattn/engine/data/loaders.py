"""Data loaders whose samples depend only on seed, rank and position in the run.

In mmengine a sample's random crop depends on the worker that loads it and on what that
worker has loaded before, and a resumed run starts new workers. Here the indices of a
batch come with its position, from which the generators are seeded before it is loaded.
"""

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial

from mmengine.dataset import worker_init_fn
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from torch.utils.data import BatchSampler, DataLoader, Sampler, Subset

from mmattn.engine.randomness import DATA, seeded, shared_seed
from mmattn.engine.stop_signals import sigterm_is_handled, start_worker
from mmattn.errors import UserError


class SeededIndices:
    """Indices of a batch that seed the generators while they are read.

    A `DataLoader` loads `[dataset[index] for index in indices]`, in one process. So the
    random numbers of a batch depend on its place in the run, and the data set needs no
    wrapper. Seeding each sample would take longer than reading a small one.
    """

    def __init__(self, indices: Sequence, key: tuple[int, ...]):
        self.indices, self.key = indices, key

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator:
        with seeded(*self.key):
            yield from self.indices


class PositionedBatchSampler(Sampler):
    """Add positions to the indices of a batch sampler, and start at any batch.

    Batches are numbered over all passes; `number` is the next one's. Batches before the
    one to resume at are drawn from the sampler and dropped, and their data is not
    loaded.

    Args:
        build: function that makes the batch sampler from a seed.
        seed: seed that all ranks share.
        rank: rank of this process.
    """

    def __init__(self, build: Callable[[int], BatchSampler], seed: int, rank: int):
        self._build = build
        self.rank = rank
        self.number = 0
        self._first = 0
        self.reseed(seed)

    def reseed(self, seed: int):
        """Start with another seed; a resumed run reads it from its checkpoint."""
        self.seed = seed
        self.batch_sampler = self._build(seed)

    def resume(self, at: int, number: int = 0):
        """Start the next pass at batch `number`, and yield from batch `at` on."""
        self.number, self._first = number, at

    def set_epoch(self, epoch: int):
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(epoch)

    @property
    def sampler(self):
        return self.batch_sampler.sampler

    @property
    def batch_size(self) -> int:
        return self.batch_sampler.batch_size

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[SeededIndices]:
        for indices in self.batch_sampler:
            number = self.number
            self.number += 1
            if number >= self._first:
                yield SeededIndices(indices, (DATA, self.seed, self.rank, number))


class PositionedDataLoader(DataLoader):
    """Return the batch sampler's sampler, where torch returns a default."""

    @property
    def sampler(self):
        return self.batch_sampler.sampler

    @sampler.setter
    def sampler(self, default):
        """Ignore the default that torch sets beside a batch sampler."""


class EndlessBatches:
    """Yield a loader's batches pass after pass, for loops that count iterations.

    Unlike mmengine's iterator, resuming never loads the batches that it skips.
    """

    def __init__(self, dataloader: DataLoader):
        self._dataloader = dataloader
        self._batches = _passes(dataloader)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._batches)

    def skip_iter(self, num_iters: int):
        """Start at batch `num_iters`; call this before the first batch."""
        self._dataloader.batch_sampler.resume(at=num_iters)


def _passes(dataloader: DataLoader) -> Iterator:
    sampler, epoch = dataloader.batch_sampler, 0
    while True:
        sampler.set_epoch(epoch)
        before = sampler.number
        yield from dataloader
        if sampler.number == before:
            raise _no_batch(dataloader, 'train_dataloader')
        epoch += 1


def check_batches(dataloader: DataLoader, key: str):
    """Raise a ValueError if a pass over a loader has no batch, as of `drop_last`."""
    if not len(dataloader):
        raise _no_batch(dataloader, key)


def _no_batch(dataloader: DataLoader, key: str) -> UserError:
    _, world_size = get_dist_info()
    return UserError(
        f'{key} has no batch: its data set has {len(dataloader.dataset)} samples, '
        f'fewer than batch_size={dataloader.batch_size} for each of {world_size} '
        'process(es), and drop_last=True drops them. Set drop_last=False or a smaller '
        'batch_size'
    )


def positioned(loader: DataLoader) -> PositionedBatchSampler | None:
    """Return the loader's numbered batches, or None if a user built the loader."""
    sampler = loader.batch_sampler
    return sampler if isinstance(sampler, PositionedBatchSampler) else None


def _function(cfg: dict | Callable) -> Callable:
    """Return a config's function; `type` is it or its name, the rest its arguments."""
    if not isinstance(cfg, dict):
        return cfg
    kwargs = dict(cfg)
    function = kwargs.pop('type')
    if isinstance(function, str):
        name, function = function, FUNCTIONS.get(function)
        if function is None:
            raise UserError(f'there is no function {name!r} in FUNCTIONS, got {cfg}')
    return partial(function, **kwargs)


def build_dataloader(
    cfg: dict, dataset: Sized, seed: int | None, diff_rank_seed: bool
) -> DataLoader:
    """Build a loader whose samples depend only on seed, rank and position.

    Args:
        cfg: a config's dataloader, with any key that mmengine supports.
        dataset: the data set, built from the config's.
        seed: the runner's seed; None draws one.
        diff_rank_seed: whether the rank has been added to `seed`.
    """
    rank, world_size = get_dist_info()
    if seed is None:
        seed = sync_random_seed()
    else:
        seed = shared_seed(seed, rank, diff_rank_seed)
    cfg = {key: value for key, value in cfg.items() if key != 'dataset'}
    sampler_cfg = cfg.pop('sampler')
    batch_sampler_cfg = cfg.pop('batch_sampler', None)
    batch_size = cfg.pop('batch_size', 1)
    drop_last = cfg.pop('drop_last', False)
    num_batches = cfg.pop('num_batch_per_epoch', None)
    sampled = dataset
    if num_batches is not None:
        sampled = Subset(dataset, range(num_batches * batch_size * world_size))

    def build(seed: int) -> BatchSampler:
        sampler = sampler_cfg
        if isinstance(sampler, dict):
            default_args = dict(dataset=sampled, seed=seed)
            sampler = DATA_SAMPLERS.build(sampler, default_args=default_args)
        if batch_sampler_cfg is None:
            return BatchSampler(sampler, batch_size, drop_last)
        if not isinstance(batch_sampler_cfg, dict):
            return batch_sampler_cfg
        default_args = dict(sampler=sampler, batch_size=batch_size)
        return DATA_SAMPLERS.build(batch_sampler_cfg, default_args=default_args)

    batch_sampler = PositionedBatchSampler(build, seed, rank)
    seeding = dict(
        type=worker_init_fn,
        num_workers=cfg.get('num_workers', 0),
        rank=rank,
        seed=seed,
        disable_subprocess_warning=cfg.pop('disable_subprocess_warning', False),
    )
    loader = PositionedDataLoader(
        dataset,
        batch_sampler=batch_sampler,
        collate_fn=_function(cfg.pop('collate_fn', dict(type='pseudo_collate'))),
        worker_init_fn=partial(
            start_worker,
            init=_function(cfg.pop('worker_init_fn', seeding)),
            handled=sigterm_is_handled(),
        ),
        **cfg,
    )
    # torch sets it to None beside a batch sampler, but hooks of mmpretrain read it.
    vars(loader)['batch_size'] = batch_sampler.batch_size
    return loader
