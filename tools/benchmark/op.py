"""Time an operator beside its peers: both passes, peak memory.

    python -m tools.benchmark.op --csv docs/benchmarks/landmark_attention_cpu.csv
    python -m tools.benchmark.op structure_aware_attention --device cuda --batch 32

`operators/` says what is timed, at which shapes and beside what. The file of a module
like those there may take the place of a name. All methods take turns in one run (see
`measure.py`). A method whose maps would exceed 4 GiB, or 0.7 of a GPU's free memory, is
listed as skipped, with what it needs. Results that ought to be equal are compared
before they are timed. `speedup` is the speed over the baseline's, empty where the
baseline was skipped.
'compiled definition' is what torch.compile makes of the definition. It and
FlexAttention need a C++ compiler on the CPU, and are left out without one.

On CUDA, `ms` is the time per call of a saturated queue, `graph_ms` of a CUDA graph
on the same tensors and `graph_cold_ms` of one that finds no input in the cache.
`floor_ms` is the least time that the device could take: the least bytes at the rate of
a measured copy, or the FLOPs at the rate of a measured matrix product, whichever is
longer (`bound`). Fourier transforms count at the rate of such a product in float32
without tensor cores, or as dense DFT matrices at that with them, whichever is shorter.
Interpolations count at the rate without.
Exponentials of N x N maps count at the rate of the special-function units and bound by
themselves, as the device takes them beside the products.
`floor_fraction` is the floor over `graph_cold_ms`.
"""

import argparse
import dataclasses
import functools
import os
import shutil
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis.flop_rules import SAMPLINGS, TRANSFORMS
from mmattn.cli.terminal import positive, run_main
from tools.benchmark import graphs, measure
from tools.benchmark.operators import (
    OPERATORS,
    PASSES,
    Case,
    Grid,
    by_pass,
    load,
)
from tools.benchmark.tolerances import assert_close

GIB = 2**30
# What the maps of a method may take on a CPU, and of a GPU's free memory.
CPU_LIMIT, FREE_SHARE = 4 * GIB, 0.7
QUICK_SIDES = '5 8'
DEFINITION = '(definition)'


def cases_of(
    operator: ModuleType, which: str, problem: tuple, compiled: bool = True
) -> list[Case]:
    """Return the cases that support a pass, with the compiled ones if `compiled`."""
    cases = list(operator.cases(*problem))
    # Inductor generates no code for the complex numbers of Fourier transforms.
    for case in cases[:]:
        if DEFINITION in case.method and 'structure_aware' not in case.method:
            changes = dict(
                method=f'compiled definition{case.method.partition(DEFINITION)[2]}',
                call=torch.compile(case.call, dynamic=False),
                same_as=case.method,
                compiled=True,
            )
            cases.append(dataclasses.replace(case, **changes))
    device = problem[2]
    if device == 'cpu' and not shutil.which(os.environ.get('CXX', 'g++')):
        compiled = False
    return [
        case
        for case in cases
        if which in case.passes and (compiled or not case.compiled)
    ]


def check(cases: list[Case], which: str, dtype: torch.dtype) -> dict[str, str]:
    """Compare each case that names an equal case with it, in float64.

    Returns:
        Notes by method: where the memory did not suffice to compare, and where the
        results of code that a compiler generated differ by more than the tolerance.

    Raises:
        AssertionError: another method's results differ by more than the tolerance.
    """
    by_method = {case.method: case for case in cases}
    notes = {}
    for case in cases:
        if case.same_as not in by_method:
            continue
        try:
            results = by_method[case.same_as].in_float64().run(which), case.run(which)
            for i, (expected, actual) in enumerate(zip(*results, strict=True)):
                assert_close(f'{case.method}, result {i}', expected, actual, dtype)
        except torch.OutOfMemoryError:
            notes[case.method] = 'not compared: the definition takes too much memory'
        except AssertionError as error:
            if not case.compiled:
                raise
            notes[case.method] = str(error).removeprefix(f'{case.method}, ')
    return notes


def least_seconds(case: Case, which: str, rates: dict) -> dict[str, float]:
    """Return the times that the fewest bytes and the FLOPs require."""
    with FlopCounterMode(display=False) as counter:
        case.run(which)
    counts = counter.get_flop_counts().get('Global', {})
    transforms, samples = (
        sum(n for operator, n in counts.items() if operator in kind)
        for kind in (TRANSFORMS, SAMPLINGS)
    )
    seconds = transforms / rates['vector_flops']
    if which in case.dft_flops:
        seconds = min(seconds, case.dft_flops[which] / rates['flops'])
    seconds += samples / rates['vector_flops']
    products = counter.get_total_flops() - transforms - samples
    floors = {
        'bytes': case.least_bytes(which) / rates['bytes'],
        'flops': products / rates['flops'] + seconds,
    }
    exponentials = by_pass((1, 2), case.pairs)[which]  # recomputed in the backward
    floors['exponentials'] = exponentials / rates['exponentials']
    return floors


def on_device(
    operator: ModuleType, cases: list[Case], which: str, problem: tuple, args, rates
) -> dict[str, dict]:
    """Return the columns that a GPU adds, by method, or notes why there are none."""
    copies = [{case.method: case for case in cases}]
    inputs = max(case.least_bytes('forward') for case in cases)
    while len(copies) < graphs.num_copies(inputs):
        again = cases_of(operator, which, problem, args.compiled)
        copies.append({case.method: case for case in again})
    columns, replays = {}, {}
    for name in copies[0]:
        again = [functools.partial(c[name].run, which) for c in copies]
        try:
            warm, cold = again[:1] * graphs.REPLAYED, again
            pair = graphs.capture(warm), graphs.capture(cold)
        except RuntimeError as error:
            torch.cuda.synchronize()  # raises unless the error came from the graph
            note = str(error).splitlines()[0]
            columns[name] = {'note': f'no CUDA graph: {note}'}
        else:
            replays |= {(name, 'warm'): pair[0], (name, 'cold'): pair[1]}
    times = measure.interleave(replays, args.rounds, args.seconds)
    for case in cases:
        if case.method in columns:
            continue
        warm = times[case.method, 'warm'].median / graphs.REPLAYED
        cold = times[case.method, 'cold'].median / len(copies)
        floors = least_seconds(case, which, rates)
        bound = max(floors, key=floors.get)
        columns[case.method] = {
            'graph_ms': measure.rounded(1e3 * warm),
            'graph_cold_ms': measure.rounded(1e3 * cold),
            'floor_ms': measure.rounded(1e3 * floors[bound]),
            'bound': bound,
            'floor_fraction': measure.rounded(floors[bound] / cold),
        }
    return columns


def rows(operator: ModuleType, args: argparse.Namespace) -> Iterator[dict]:
    dtype = getattr(torch, args.dtype)
    rates = graphs.rates_of(dtype) if args.device == 'cuda' else None
    for grid, batch in zip(args.sides, cycle(args.batch), strict=False):
        height, width = grid
        problem = (grid, batch, args.device, dtype)
        for which in PASSES:
            torch.compiler.reset()  # there is a limit to the shapes of a function
            cases = cases_of(operator, which, problem, args.compiled)
            limit = CPU_LIMIT
            if args.device == 'cuda':
                limit = FREE_SHARE * torch.cuda.mem_get_info()[0]
            run = [case for case in cases if case.map_bytes(which) <= limit]
            measure.progress(f'{args.operator}, {height} x {width}, {which}')
            notes = check(run, which, dtype)
            calls = {c.method: functools.partial(c.run, which) for c in run}
            times = measure.interleave(calls, args.rounds, args.seconds, args.clock)
            baseline, extra = times.get(operator.BASELINE), {}
            if rates is not None:
                extra = on_device(operator, run, which, problem, args, rates)
            for case in cases:
                row = {'method': case.method, 'tokens': height * width, 'pass': which}
                row |= case.columns
                if case.method not in times:
                    need = case.map_bytes(which) / GIB
                    yield row | {'note': f'skipped: needs {need:.1f} GiB'}
                    continue
                time = times[case.method]
                row |= {'ms': measure.rounded(1e3 * time.median)}
                row |= time.columns(baseline)
                peak = measure.peak_memory(calls[case.method], args.device)
                row |= {'peak_mib': measure.rounded(peak / measure.MIB), 'note': ''}
                row |= extra.get(case.method, {})
                note = '; '.join(filter(None, (row['note'], notes.get(case.method))))
                yield row | {'note': note}


def parse_side(text: str) -> Grid:
    """Parse a map: '14' has 14 x 14 tokens, '200x334' has a height and a width."""
    sides = tuple(map(int, text.split('x')))
    if len(sides) > 2 or min(sides) < 1:
        raise ValueError(text)
    return sides[0], sides[-1]


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.2)
    parser.add_argument(
        'operator',
        nargs='?',
        default='landmark_attention',
        help=f'one of {", ".join(OPERATORS)}, or a .py file with the same interface',
    )
    parser.add_argument('--dtype', default='float32', choices=measure.DTYPES)
    measure.add_clock(parser)
    parser.add_argument(
        '--no-compiled',
        action='store_false',
        dest='compiled',
        help='leave out FlexAttention and compiled definitions, which take minutes',
    )
    parser.add_argument(
        '--batch',
        type=positive,
        nargs='+',
        default=[1],
        help='one, or one for each side',
    )
    parser.add_argument(
        '--sides',
        nargs='+',
        type=parse_side,
        metavar='SIDE',
        help="of the maps, one number each or HxW (default: the operator's)",
    )
    args = measure.parse(parser, argv)
    operator = load(args.operator)
    args.operator = Path(args.operator).stem
    sides = QUICK_SIDES if args.quick else operator.SIDES
    args.sides = args.sides or [parse_side(side) for side in sides.split()]
    if len(args.batch) not in (1, len(args.sides)):
        parser.error(f'--batch: {len(args.sides)} sides, got {args.batch}')
    # Compiling takes longer than a quick run.
    with torch.compiler.set_stance('force_eager' if args.quick else 'default'):
        measure.report(
            rows(operator, args),
            args,
            title=args.operator,
            operator=args.operator,
            batch='/'.join(map(str, args.batch)),
            dtype=args.dtype,
            clock=args.clock,
            baseline=operator.BASELINE,
        )
    return 0


if __name__ == '__main__':
    run_main(main)
