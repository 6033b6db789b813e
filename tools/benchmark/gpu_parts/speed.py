"""Time every operator at its paper's shapes and at 200 x 334, beside its peers."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from time import perf_counter
from types import ModuleType

import torch

from tools.benchmark import graphs, measure, op, operators
from tools.benchmark.operators import PASSES, Case, Side, grid_of

from .log import Log, Settings

TITLE = 'Operators beside their peers'
SHARE = 25
DTYPE = torch.bfloat16
DETECTION = (200, 334)  # patches of 4 x 4 pixels of an image of 800 x 1333
# Sides and batches; those of the papers are first.
SHAPES = {
    'masked_attention': [(56, 32), (DETECTION, 1)],
    'neighborhood_attention': [(56, 32), (DETECTION, 1)],
    'landmark_attention': [(14, 128), ((50, 84), 2), (DETECTION, 1)],
    'structure_aware_attention': [(14, 32), (28, 32), (56, 32), (DETECTION, 1)],
    'deformable_attention': [(56, 128), ((50, 84), 1), (DETECTION, 1)],
    'ms_deform_attn': [((100, 167), 1), (DETECTION, 1)],
    'ms_deform_attn_decoder': [((100, 167), 4)],
}
SMALL = [(4, 1)]
ROUNDS = dict(rounds=3, seconds=0.02)
FREE_SHARE = 0.7  # of the free memory that a method's maps may take


def tasks(settings: Settings) -> list[str]:
    return list(SHAPES)


def run(task: str, settings: Settings, log: Log):
    module = operators.load(task)
    rates = rates_of(settings)
    for side, batch in SMALL if settings.dry_run else SHAPES[task]:
        height, width = grid_of(side)
        name = f'{task}, {height} x {width}, batch {batch}'
        make = functools.partial(Problem, module, side, batch, settings.device)
        problem = log.build(name, make)
        if problem is None:
            continue
        for which in PASSES:
            for case in problem.cases.values():
                # A dry run compiles nothing: that takes longer than all else.
                if which not in case.passes or (settings.dry_run and case.compiled):
                    continue
                work = functools.partial(timed, task, problem, case, which, rates)
                log.attempt(f'{name}, {which}, {case.method}', work)


def rates_of(settings: Settings) -> dict[str, float]:
    """Return the rates that an earlier part has measured."""
    rows = settings.rows('rates')
    return {row['rate']: row['per_second'] for row in rows if row['per_second']}


class Problem:
    """Hold all methods on one input, and copies of them on further inputs."""

    def __init__(self, module: ModuleType, side: Side, batch: int, device: str):
        self.module, self.batch, self.device = module, batch, device
        self.grid = grid_of(side)
        self._arguments = side, batch, device, DTYPE
        self._copies = [self._make()]

    def _make(self) -> dict[str, Case]:
        made = self.module.cases(*self._arguments)
        return {case.method: case for case in made}

    @property
    def cases(self) -> dict[str, Case]:
        return self._copies[0]

    def copies_of(self, case: Case) -> list[Case]:
        """Return a case on as many inputs as the cache does not hold."""
        count = graphs.num_copies(case.least_bytes('forward'))
        while len(self._copies) < count:
            self._copies.append(self._make())
        return [cases[case.method] for cases in self._copies[:count]]


def timed(task: str, problem: Problem, case: Case, which: str, rates: dict) -> Iterator:
    """Yield the row of one method, which is compared with its definition first."""
    height, width = problem.grid
    row = {
        'method': case.method,
        'tokens': height * width,
        'height': height,
        'width': width,
        'images': problem.batch,
        'pass': which,
    }
    need = case.needs.get(which, 0)
    if problem.device == 'cuda':
        need -= FREE_SHARE * torch.cuda.mem_get_info()[0]
        if need > 0:
            raise torch.OutOfMemoryError(f'{case.method} needs too much memory')
    note = compared(problem, case, which)
    call = functools.partial(case.run, which)
    time = seconds_of(call, problem.device)
    row |= {
        'ms': measure.rounded(1e3 * time.median),
        'spread_percent': measure.rounded(100 * time.spread, 2),
        'peak_mib': measure.rounded(
            measure.peak_memory(call, problem.device) / measure.MIB
        ),
    }
    if problem.device == 'cuda':
        columns, failure = graph_times(problem, case, which, rates)
        row, note = row | columns, '; '.join(filter(None, (note, failure)))
    about = measure.about(
        problem.device,
        operator=task,
        batch='/'.join(str(batch) for _, batch in SHAPES[task]),
        dtype=str(DTYPE).removeprefix('torch.'),
        baseline=problem.module.BASELINE,
    )
    yield f'{task}_gpu', row | {'note': note} | about


def seconds_of(call: Callable[[], object], device: str) -> measure.Timing:
    """Time a call, only once on a CPU: the interpreter takes seconds."""
    if device == 'cuda':
        return measure.interleave({'': call}, **ROUNDS)['']
    start = perf_counter()
    call()
    return measure.Timing([perf_counter() - start])


def compared(problem: Problem, case: Case, which: str) -> str:
    """Compare the results with those that must be equal. Return why not, or ''.

    Raises:
        AssertionError: they differ.
    """
    expected = problem.cases.get(case.same_as)
    if expected is None:
        return ''
    try:
        op.check([expected, case], which, DTYPE)
    except torch.OutOfMemoryError:
        return 'not compared: the definition takes too much memory'
    return ''


def graph_times(
    problem: Problem, case: Case, which: str, rates: dict
) -> tuple[dict, str]:
    """Return the columns of CUDA graphs, and why they are missing or ''."""
    columns = {}
    copies = problem.copies_of(case)
    repeated = [functools.partial(case.run, which)] * graphs.REPLAYED
    others = [functools.partial(copy.run, which) for copy in copies]
    try:
        for name, calls in (('graph_ms', repeated), ('graph_cold_ms', others)):
            replay = graphs.capture(calls)
            time = seconds_of(replay, problem.device)
            columns[name] = measure.rounded(1e3 * time.median / len(calls))
            del replay
    except RuntimeError as error:
        torch.cuda.synchronize()  # raises if the error was not that of the graph
        return columns, f'no CUDA graph: {str(error).splitlines()[0]}'
    if not rates:
        return columns, 'no floor: rates were not measured'
    with contextlib.suppress(NotImplementedError, RuntimeError):
        floors = op.least_seconds(case, which, rates)
        bound = max(floors, key=floors.get)
        columns |= {
            'floor_ms': measure.rounded(1e3 * floors[bound]),
            'bound': bound,
            'floor_fraction': measure.rounded(
                1e3 * floors[bound] / columns['graph_cold_ms']
            ),
        }
    return columns, ''
