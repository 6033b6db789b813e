"""Choose tiles by time, on the device that runs them.

The launchers' tables hold tiles that were chosen by counted instructions. `tune` times
their neighbors in the calls of a step, and `keep` stores what is faster by the name of
the device, where later processes find it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .launch import TILE_TABLES, TileTable, read_tiles, tiles_path

MAX_WARPS, MIN_SIZE, MAX_SIZE = 16, 4, 256
MIN_GAIN = 1.03  # smaller gains are noise
# What results with other tiles may differ by, relative to the largest number.
CLOSE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Tuned(NamedTuple):
    """Hold a choice: the table and key, both tiles, and how much faster a call is."""

    table: TileTable
    key: Any
    before: tuple[int, ...]
    sizes: tuple[int, ...]
    gain: float


class Calls(TorchDispatchMode):
    """Note the calls of operators of mmattn, once for all tensors of the same sizes."""

    def __init__(self):
        super().__init__()
        self.found: dict[str, Callable[[], Any]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == 'mmattn':
            tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
            others = [x for x in tree_leaves(args) if not isinstance(x, Tensor)]
            sizes = [(x.shape, x.stride(), x.dtype) for x in tensors]
            name = f'{function}, {sizes}, {others}'
            self.found.setdefault(name, lambda: function(*args, **(kwargs or {})))
        return function(*args, **(kwargs or {}))


def neighbors(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield sizes with one of them halved or doubled; the last one counts warps."""
    for i, size in enumerate(sizes):
        is_warps = i == len(sizes) - 1
        low, high = (1, MAX_WARPS) if is_warps else (min(MIN_SIZE, size), MAX_SIZE)
        for other in (2 * size, size // 2):
            if low <= other <= high:
                yield (*sizes[:i], other, *sizes[i + 1 :])


@contextmanager
def _used_tiles() -> Iterator[list[tuple[TileTable, Any]]]:
    """Collect the tables and keys that calls look up."""
    used = []
    for table in TILE_TABLES.values():
        table.used.clear()
    yield used
    for table in TILE_TABLES.values():
        used += [(table, key) for key in sorted(table.used, key=str)]


def _errors() -> tuple[type[Exception], ...]:
    from triton.runtime.errors import TritonError

    return RuntimeError, TritonError


def _is_close(expected: list[Tensor], actual: list[Tensor]) -> bool:
    for x, y in zip(expected, actual, strict=True):
        if x.numel() and x.is_floating_point():
            error = (x.double() - y.double()).abs().max()
            if not error <= CLOSE[x.dtype] * x.double().abs().max().clamp_min(1e-6):
                return False
    return True


def tune(
    step: Callable[[], Any], seconds: Callable[[Callable], float]
) -> Iterator[Tuned]:
    """Run a step, and yield the tiles of its calls that are faster by time.

    The tables have them from then on. Tiles that do not fit on the device, or give
    other results, are not taken.

    Args:
        step: forward and backward of a model, for example.
        seconds: returns the time of a call of a function.
    """
    with Calls() as calls:
        step()
    for call in calls.found.values():
        with _used_tiles() as used:
            expected = _tensors(call())
        for table, key in used:
            before = best = table[key]
            start = now = seconds(call)
            for sizes in neighbors(before):
                time = _time_of(call, table, key, sizes, expected, seconds)
                if time is not None and time * MIN_GAIN < now:
                    best, now = sizes, time
            if best != before:
                table[key] = best
                yield Tuned(table, key, before, best, start / now)


def _time_of(call, table, key, sizes, expected, seconds) -> float | None:
    with table.trial(key, sizes):
        try:
            return seconds(call) if _is_close(expected, _tensors(call())) else None
        except _errors():
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # raises where the context is broken
            return None


def _tensors(values) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def keep(tuned: list[Tuned], device: str) -> Mapping:
    """Add choices to those that are kept for a device, and return all of them."""
    tiles = read_tiles(device)
    for choice in tuned:
        tiles.setdefault(choice.table.name, {})[str(choice.key)] = choice.sizes
    path = tiles_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix('.draft')
    draft.write_text(json.dumps(tiles, indent=1))
    draft.replace(path)  # a kill leaves the old file or the new one
    return tiles
