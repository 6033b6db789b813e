"""Search for faster tiles: halve and double each size of the launchers' tiles.

    python -m tools.benchmark.tiles masked_attention --csv tiles.csv

times both passes of a few real calls in bfloat16, and prints the entries to put into
the launchers' tables. `TRITON_INTERPRET=1` with `--device cpu --quick` tries it out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from mmattn.cli.terminal import run_main
from mmattn.ops.triton.launch import TILE_TABLES, TileTable
from mmattn.ops.triton.tune import MIN_GAIN, neighbors
from tools.benchmark import graphs, measure
from tools.benchmark.check import launch_errors
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls
from tools.benchmark.tolerances import error_in_tolerances, run_with_grads

DTYPE = torch.bfloat16
NUM_CALLS = 3  # real calls of an operator
REPEATED = 8  # calls in a graph


def tables_of(operator: str) -> list[TileTable]:
    return [t for name, t in TILE_TABLES.items() if name.startswith(f'{operator}.')]


def steps_of(call: Call, device: str) -> tuple[Callable, Callable]:
    """Return functions with a call's results, and with the seconds of both passes."""
    tensors = call.make_tensors(dtype=DTYPE, device=device)
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]
    wanted = [x for x in leaves if x is not None]

    def results() -> list:
        out, grads = run_with_grads(call.run_on('triton'), tensors)
        return [out, *(x for x in grads if x is not None)]

    def step():
        out = call.function(*leaves, backend='triton')
        torch.autograd.grad(out, wanted, torch.ones_like(out))

    def seconds() -> float:
        if device == 'cpu':
            return measure.interleave({'': step}, rounds=1, seconds=0)[''].median
        replay = graphs.capture([step] * REPEATED)
        times = measure.interleave({'': replay}, rounds=3, seconds=0.02)
        return times[''].median / REPEATED

    return results, seconds


def trial(
    table: TileTable, key: Any, sizes: tuple, expected: list, now: float, steps: tuple
) -> dict:
    """Return the columns of other sizes, with a note where they do not work."""
    results, seconds = steps
    with table.trial(key, sizes):
        try:
            pairs = zip(expected, results(), strict=True)
            error = max(error_in_tolerances(a, b, DTYPE) for a, b in pairs)
            if error > 2:  # both results have rounding errors
                return {'note': f'wrong by {error:.1f} tolerances'}
            tried = seconds()
        except launch_errors() as error:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # raises where the context is broken
            return {'note': f'{type(error).__name__}: {error}'[:200]}
    gain = measure.rounded(now / tried, 3)
    return {'tried_ms': measure.rounded(1e3 * tried), 'gain': gain}


def search(call: Call, device: str, quick: bool) -> Iterator[dict]:
    """Yield a row of each trial, one size at a time."""
    tables = tables_of(call.operator)
    for table in tables:
        table.used.clear()
    results, seconds = steps = steps_of(call, device)
    expected = results()
    used = [(table, key) for table in tables for key in sorted(table.used, key=str)]
    now = seconds()
    for table, key in used:
        for sizes in list(neighbors(table[key]))[: 1 if quick else None]:
            yield {
                'table': table.name,
                'key': str(key),
                'now': str(table[key]),
                'tried': str(sizes),
                'call': str(call),
                'now_ms': measure.rounded(1e3 * now),
                **trial(table, key, sizes, expected, now, steps),
            }


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


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, device='cuda')
    parser.add_argument('operators', nargs='*', metavar='OPERATOR', help='default: all')
    args = measure.parse(parser, argv)
    calls = [
        call
        for name in args.operators or filter(tables_of, OPERATORS)
        for call in (small_calls if args.quick else real_calls)(name)[:NUM_CALLS]
    ]
    found = (row for call in calls for row in search(call, args.device, args.quick))
    found = measure.report(found, args, title='Tiles')
    print('\n'.join(advice(found)) or 'no other tiles are faster')
    return 0


if __name__ == '__main__':
    run_main(main)
