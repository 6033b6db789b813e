"""Search for faster tiles: those of the launchers, each size halved and doubled."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from mmattn.ops.triton_launch import TILE_TABLES, TileTable
from tools.benchmark import graphs
from tools.benchmark.measure import rounded
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls
from tools.benchmark.tolerances import error_in_tolerances, run_with_grads

from .log import Log, Settings
from .speed import seconds_of

TITLE = 'Tiles'
SHARE = 14
DTYPE = torch.bfloat16
NUM_CALLS = 3  # real calls of an operator, the first of which is timed first
REPEATED = 8  # calls in a graph
MAX_WARPS, MIN_SIZE, MAX_SIZE = 16, 4, 256
MIN_GAIN = 1.03  # smaller gains are noise


def tasks(settings: Settings) -> list[str]:
    """Return the operators that have tables; neighborhood attention borrows one."""
    return [name for name in OPERATORS if tables_of(name)]


def tables_of(operator: str) -> list[TileTable]:
    return [t for name, t in TILE_TABLES.items() if name.startswith(f'{operator}.')]


def run(task: str, settings: Settings, log: Log):
    """Search one size at a time, on calls of both passes."""
    calls = small_calls(task) if settings.dry_run else real_calls(task)
    for call in calls[:NUM_CALLS]:
        search = log.build(str(call), partial(Search, call, settings.device))
        if search is None:
            continue
        for table, key in search.used:
            trials = list(neighbors(table[key]))
            for sizes in trials[:1] if settings.dry_run else trials:
                name = f'{table.name}[{key}] = {sizes}, {call}'
                log.attempt(name, partial(search.trial, table, key, sizes))


def neighbors(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield sizes of which one is halved or doubled; the last is that of warps."""
    for i, size in enumerate(sizes):
        is_warps = i == len(sizes) - 1
        low, high = (1, MAX_WARPS) if is_warps else (min(MIN_SIZE, size), MAX_SIZE)
        for other in (2 * size, size // 2):
            if low <= other <= high:
                yield (*sizes[:i], other, *sizes[i + 1 :])


class Search:
    """Time a call with other tiles, beside those of the launcher."""

    def __init__(self, call: Call, device: str):
        self.call, self.device = call, device
        self.tensors = call.make_tensors(dtype=DTYPE, device=device)
        tables = tables_of(call.operator)
        for table in tables:
            table.used.clear()
        self.expected = self._results()
        self.used = [(t, k) for t in tables for k in sorted(t.used, key=str)]
        self.seconds = self._seconds()

    def _results(self) -> list:
        out, grads = run_with_grads(self.call.run_on('triton'), self.tensors)
        return [out, *(x for x in grads if x is not None)]

    def _seconds(self) -> float:
        if self.device == 'cpu':
            return seconds_of(self._results, self.device).median
        leaves = [x if x is None else x.detach().requires_grad_() for x in self.tensors]
        wanted = [x for x in leaves if x is not None]
        grad = torch.ones_like(self.expected[0])

        def step():
            out = self.call.function(*leaves, backend='triton')
            torch.autograd.grad(out, wanted, grad)

        replay = graphs.capture([step] * REPEATED)
        return seconds_of(replay, self.device).median / REPEATED

    def trial(self, table: TileTable, key: Any, sizes: tuple[int, ...]) -> Iterator:
        """Yield the row of other sizes, with a note where they do not work."""
        row = {
            'table': table.name,
            'key': str(key),
            'now': str(table[key]),
            'tried': str(sizes),
            'call': str(self.call),
            'now_ms': rounded(1e3 * self.seconds),
        }
        with table.trial(key, sizes):
            try:
                results = self._results()
                pairs = zip(self.expected, results, strict=True)
                error = max(error_in_tolerances(a, b, DTYPE) for a, b in pairs)
                # Both results have rounding errors.
                if error > 2:
                    yield 'tiles', row | {'note': f'wrong by {error:.1f} tolerances'}
                    return
                seconds = self._seconds()
            except Exception as error:  # noqa: BLE001  the compiler raises many kinds
                if self.device == 'cuda':
                    torch.cuda.synchronize()  # raises where the context is broken
                yield 'tiles', row | {'note': f'{type(error).__name__}: {error}'[:200]}
                return
        gain = self.seconds / seconds
        yield (
            'tiles',
            row
            | {
                'tried_ms': rounded(1e3 * seconds),
                'gain': rounded(gain, 3),
                'note': '',
            },
        )


def advice(rows: list[dict]) -> Iterator[str]:
    """Yield the entries to put into the launchers: the best of each call."""
    best = {}
    for row in rows:
        key = row['table'], row['key'], row['call']
        if row.get('gain', 0) > best.get(key, {'gain': MIN_GAIN})['gain']:
            best[key] = row
    for (table, key, call), row in best.items():
        yield (
            f'{table}: {key}: {row["tried"]},  # instead of {row["now"]}: '
            f'{row["gain"]} times as fast at {call}'
        )
