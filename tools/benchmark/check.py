"""Compare the kernels for GPUs with the operators' definitions, at real shapes.

    python -m tools.benchmark.check masked_attention --csv masked_attention.csv
    TRITON_INTERPRET=1 python -m tools.benchmark.check --device cpu --quick

`error` is the largest error of the output or of a gradient (`of`), in units of the
tests' tolerance, from the definition in float64: up to 1 is right. `equal_runs` says
whether three runs in deterministic mode, where every kernel of Triton promises it, are
equal bit by bit. The exit status is 1 if a call is wrong or raises an error.
--compile compares nothing: it compiles the kernels of Triton in all cores, and Triton
keeps them on disk, where the comparisons find them.

Each call is named before it runs. An error that the process does not survive, such as
an illegal address, is that call's row, and a new process goes on after it if there is
--csv.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, cycle
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

from mmattn.cli.terminal import run_main
from mmattn.ops.common.operator import OPERATORS as FRAMES
from mmattn.ops.common.operator import REFERENCE
from mmattn.ops.triton import launch as triton_launch
from tools.benchmark import measure
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls
from tools.benchmark.tolerances import deterministic, run_with_grads

try:
    from triton.runtime.errors import TritonError
except ImportError:  # where there are no kernels of Triton to compare
    TritonError = RuntimeError

DTYPES = (torch.bfloat16, torch.float32, torch.float16)
NOT_FOR_GPUS = (REFERENCE, 'torch', 'cpp')
RUNS = 3


class Comparison(NamedTuple):
    """Describe what is compared with the definition."""

    call: Call
    backend: str
    dtype: torch.dtype

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix('torch.')
        return f'{self.call.operator}, {self.backend}, {dtype}, {self.call}'


class ContextLost(Exception):
    """Tell how many comparisons were done when the device stopped to work."""


def kernels(call: Call, device: str) -> list[str]:
    """Return the names of the backends for a GPU that support a call."""
    operator = FRAMES[call.operator]
    tensors = call.make_tensors(dtype=torch.float32, device=device)
    not_here = operator.unsupported(*tensors)
    return [x for x in operator.backends if x not in (*not_here, *NOT_FOR_GPUS)]


def compare(call: Call, backend: str, dtype: torch.dtype, device: str) -> dict:
    """Return the columns of one call."""
    errors = call.errors_on(backend, dtype, device)
    worst = max(errors, key=errors.get)
    row = {'error': measure.rounded(errors[worst], 3), 'of': worst}
    if backend == 'triton':
        tensors = call.make_tensors(dtype=dtype, device=device)
        with deterministic():
            runs = [run_with_grads(call.run_on(backend), tensors) for _ in range(RUNS)]
        first, *others = (
            [out, *(x for x in grads if x is not None)] for out, grads in runs
        )
        row['equal_runs'] = all(all(map(torch.equal, first, x)) for x in others)
    row['passed'] = errors[worst] <= 1 and row.get('equal_runs', True)
    return row


def comparisons(
    operators: Sequence[str], device: str, quick: bool
) -> Iterator[Comparison]:
    """Yield each call and backend, in one dtype and then in the others.

    If `quick`, calls are small ones in float32 and, on a GPU, a real one in bfloat16.
    """
    for operator in operators:
        calls = small_calls(operator)
        backends = kernels(calls[0], device)
        turns = [cycle(DTYPES[i:] + DTYPES[:i]) for i in range(len(DTYPES))]
        if quick:
            turns = [[torch.float32] * len(calls) + [torch.bfloat16]]
        if device != 'cpu' or not quick:
            calls += real_calls(operator)[: 1 if quick else None]
        for dtypes in turns:
            for call, dtype in zip(calls, dtypes, strict=False):
                yield from (Comparison(call, backend, dtype) for backend in backends)


def rows(planned: Sequence[Comparison], device: str, first: int = 0) -> Iterator[dict]:
    """Yield a row of each comparison from a first one on.

    Raises:
        ContextLost: the device does not work any more in this process.
    """
    for i, comparison in enumerate(planned[first:], first + 1):
        measure.progress(f'{i} of {len(planned)}: {comparison}')
        call, backend, dtype = comparison
        row = dict(operator=call.operator, backend=backend)
        row |= dict(dtype=str(dtype).removeprefix('torch.'), call=str(call))
        try:
            row |= compare(call, backend, dtype, device)
        except torch.OutOfMemoryError:
            row['note'] = 'not compared: too little memory'
        except (RuntimeError, TritonError) as error:
            note = f'{type(error).__name__}: {error}'.splitlines()[0]
            row |= dict(passed=False, note=note)
        yield row
        if row.get('passed') is False and not device_works():
            raise ContextLost(i)


def device_works() -> bool:
    """Return whether this process can still use the GPU, if it did."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


@contextmanager
def only_compiling(capability: int) -> Iterator[None]:
    """Let launches compile their kernels, for a capability, and start none."""
    from triton.runtime import JITFunction

    launch = JITFunction.run
    tiles = triton_launch.tile_capability(*divmod(capability, 10))

    def run(kernel, *args, warmup, **kwargs):
        return launch(kernel, *args, warmup=True, **kwargs)

    with (
        mock.patch.object(JITFunction, 'run', run),
        mock.patch.object(triton_launch, 'capability', lambda x: tiles),
    ):
        yield


def compile_call(operator: str, shape: str, dtype: torch.dtype, capability: int) -> str:
    """Compile the kernels of a call, in and out of deterministic mode."""
    from tools.gpu.report import operator_arguments

    calls = small_calls(operator) + real_calls(operator)
    call = next(call for call in calls if str(call) == shape)
    frame, tensors, settings = operator_arguments(call, dtype)
    kernels = frame.backends['triton']
    for mode in {True, call.deterministic}:
        with deterministic(mode), only_compiling(capability):
            result = kernels.forward(*tensors, **settings)
            out, *saved = (result,) if isinstance(result, torch.Tensor) else result
            if frame.num_saved > len(saved):
                saved = [out, *saved]
            kernels.backward(out, *saved, *tensors, **settings)
    return f'{operator}, {dtype}, {shape}'


def compile_all(planned: Sequence[Comparison], capability: int) -> int:
    """Compile for all comparisons, and print each as it is done."""
    tasks = dict.fromkeys(
        (x.call.operator, str(x.call), x.dtype, capability)
        for x in planned
        if x.backend == 'triton'
    )
    context = multiprocessing.get_context('spawn')  # CUDA does not survive a fork
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        done = pool.map(compile_call, *zip(*tasks, strict=True))
        for i, name in enumerate(done, 1):
            measure.progress(f'compiled {i} of {len(tasks)}: {name}')
    return 0


def earlier_rows(path: Path) -> list[dict]:
    """Return the rows of the processes before this one."""
    columns = 'operator', 'backend', 'dtype', 'call', 'error', 'of', 'equal_runs'
    found = []
    for row in measure.read_csv(path):
        found.append({k: row[k] for k in (*columns, 'note') if row.get(k)})
        if row.get('passed'):
            found[-1]['passed'] = row['passed'] == 'True'
    return found


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, device='cuda')
    parser.add_argument('operators', nargs='*', metavar='OPERATOR', help='default: all')
    parser.add_argument('--compile', action='store_true', help='compare nothing')
    parser.add_argument('--first', type=int, default=0, help=argparse.SUPPRESS)
    args = measure.parse(parser, argv)
    if unknown := set(args.operators) - set(OPERATORS):
        parser.error(f'OPERATOR must be of {OPERATORS}, got {sorted(unknown)}')
    operators = args.operators or OPERATORS
    planned = [*comparisons(operators, args.device, args.quick)]
    if args.compile:
        major, minor = torch.cuda.get_device_capability()
        return compile_all(planned, 10 * major + minor)
    found = chain(
        earlier_rows(args.csv) if args.first else (),
        rows(planned, args.device, args.first),
    )
    try:
        found = measure.report(found, args, title='Checks')
    except ContextLost as lost:
        if args.csv is None:
            raise
        done = lost.args[0]
        measure.progress(f'the device stopped; a new process goes on after {done}')
        os.execv(sys.executable, [*sys.orig_argv, '--first', str(done)])
    compared = sum('error' in row or row.get('passed') is False for row in found)
    print(f'compared {compared} of {len(planned)}')
    return int(not found or any(row.get('passed') is False for row in found))


if __name__ == '__main__':
    run_main(main)
