"""Compare the kernels for GPUs with the operators' definitions, at real shapes.

    python -m tools.benchmark.check masked_attention --csv masked_attention.csv
    TRITON_INTERPRET=1 python -m tools.benchmark.check --device cpu --quick

`error` is the largest error of the output or of a gradient (`of`), in units of the
tests' tolerance, from the definition in float64: up to 1 is right. `equal_runs` says
whether three runs in deterministic mode, where every kernel of Triton promises it, are
equal bit by bit. The exit status is 1 if a call is wrong or raises an error.
"""

import inspect
from collections.abc import Iterator
from itertools import cycle

import torch

from mmattn.cli.terminal import run_main
from mmattn.ops.common.operator import OPERATORS as FRAMES
from mmattn.ops.common.operator import REFERENCE
from tools.benchmark import measure
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls
from tools.benchmark.tolerances import (
    deterministic,
    error_in_tolerances,
    run_with_grads,
)

DTYPES = (torch.bfloat16, torch.float32, torch.float16)
NOT_FOR_GPUS = (REFERENCE, 'torch', 'cpp')
RUNS = 3


def kernels(call: Call, device: str) -> list[str]:
    """Return the names of the backends for a GPU that support a call."""
    operator = FRAMES[call.operator]
    tensors = call.make_tensors(dtype=torch.float32, device=device)
    not_here = operator.unsupported(*tensors)
    return [x for x in operator.backends if x not in (*not_here, *NOT_FOR_GPUS)]


def compare(call: Call, backend: str, dtype: torch.dtype, device: str) -> dict:
    """Return the columns of one call."""
    tensors = call.make_tensors(dtype=dtype, device=device)
    out, grads = run_with_grads(call.run_on(REFERENCE), tensors, dtype=torch.float64)
    with deterministic(call.deterministic):
        actual, actual_grads = run_with_grads(call.run_on(backend), tensors)
    errors = {'out': error_in_tolerances(out, actual)}
    names = inspect.signature(call.function).parameters
    for name, expected, x in zip(names, grads, actual_grads, strict=False):
        if expected is not None:
            errors[f'grad of {name}'] = error_in_tolerances(expected, x, dtype)
    worst = max(errors, key=errors.get)
    row = {'error': measure.rounded(errors[worst], 3), 'of': worst}
    if backend == 'triton':
        row['equal_runs'] = runs_equal(call, tensors)
    row['passed'] = errors[worst] <= 1 and row.get('equal_runs', True)
    return row


def runs_equal(call: Call, tensors: list) -> bool:
    """Return whether runs in deterministic mode are equal bit by bit."""
    with deterministic():
        runs = [run_with_grads(call.run_on('triton'), tensors) for _ in range(RUNS)]
    first, *others = (
        [out, *(g for g in grads if g is not None)] for out, grads in runs
    )
    return all(all(map(torch.equal, first, other)) for other in others)


def rows(operators: list[str], device: str, quick: bool) -> Iterator[dict]:
    """Yield a row of each call and backend, in one dtype and then in the others.

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
                for backend in backends:
                    row = dict(operator=operator, backend=backend)
                    row |= dict(dtype=str(dtype).removeprefix('torch.'), call=str(call))
                    try:
                        row |= compare(call, backend, dtype, device)
                    except torch.OutOfMemoryError:
                        row['note'] = 'not compared: too little memory'
                    except RuntimeError as error:  # so are all of Triton's
                        note = f'{type(error).__name__}: {error}'.splitlines()[0]
                        row |= dict(passed=False, note=note)
                    yield row


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, device='cuda')
    parser.add_argument('operators', nargs='*', metavar='OPERATOR', help='default: all')
    args = measure.parse(parser, argv)
    if unknown := set(args.operators) - set(OPERATORS):
        parser.error(f'OPERATOR must be of {OPERATORS}, got {sorted(unknown)}')
    found = rows(args.operators or list(OPERATORS), args.device, args.quick)
    found = measure.report(found, args, title='Checks')
    return int(not found or any(row.get('passed') is False for row in found))


if __name__ == '__main__':
    run_main(main)
