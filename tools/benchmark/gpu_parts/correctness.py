"""Compare every operator, forward and backward, with its definition in float64."""

import inspect
from functools import partial

import torch

from mmattn.ops.operator import OPERATORS as KERNELS
from mmattn.ops.operator import REFERENCE
from tools.benchmark.measure import rounded
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls
from tools.benchmark.tolerances import (
    deterministic,
    error_in_tolerances,
    run_with_grads,
)

from .log import Log, Settings

TITLE = 'Correctness'
SHARE = 24
PARALLEL = CRITICAL = True
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
DRY_DTYPES = (torch.float32,)
NOT_FOR_GPUS = (REFERENCE, 'torch', 'cpp')


def tasks(settings: Settings) -> list[str]:
    return list(OPERATORS)


def run(task: str, settings: Settings, log: Log):
    """Compare each call in one of the dtypes, then in the others."""
    dtypes = DRY_DTYPES if settings.dry_run else DTYPES
    calls = small_calls(task)
    backends = kernels(calls[0], settings.device)
    if not settings.dry_run:
        calls += real_calls(task)
    for shift in range(len(dtypes)):
        for i, call in enumerate(calls):
            dtype = dtypes[(i + shift) % len(dtypes)]
            for backend in backends:
                work = partial(compare, call, backend, dtype, settings.device)
                log.attempt(f'{task} ({backend}), {name_of(dtype)}, {call}', work)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


def kernels(call: Call, device: str) -> list[str]:
    """Return the names of an operator's backends for a GPU.

    Raises:
        RuntimeError: Triton's backend does not support the call.
    """
    operator = KERNELS[call.operator]
    reasons = operator.unsupported(
        *call.make_tensors(dtype=torch.float32, device=device)
    )
    if 'triton' in reasons:
        raise RuntimeError(f'{call.operator} has no Triton here: {reasons["triton"]}')
    return [x for x in operator.backends if x not in (*reasons, *NOT_FOR_GPUS)]


def compare(call: Call, backend: str, dtype: torch.dtype, device: str):
    """Yield a row with the largest error, in units of the tolerance."""
    tensors = call.make_tensors(dtype=dtype, device=device)
    function = call.run_on(REFERENCE)
    out, grads = run_with_grads(function, tensors, dtype=torch.float64)
    with deterministic(call.deterministic):
        actual, actual_grads = run_with_grads(call.run_on(backend), tensors)
    errors = {'out': error_in_tolerances(out, actual)}
    names = inspect.signature(call.function).parameters
    for name, expected, x in zip(names, grads, actual_grads, strict=False):
        if expected is not None:
            errors[f'grad of {name}'] = error_in_tolerances(expected, x, dtype)
    worst = max(errors, key=errors.get)
    yield (
        'correctness',
        {
            'operator': call.operator,
            'backend': backend,
            'dtype': name_of(dtype),
            'call': str(call),
            'error': rounded(errors[worst], 3),
            'of': worst,
            'passed': errors[worst] <= 1,
        },
    )
