"""Check that runs are equal bit by bit, also with compute-sanitizer."""

import os
import shutil
import subprocess
import sys
from functools import partial

import torch

from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls
from tools.benchmark.tolerances import deterministic, run_with_grads

from .log import Log, Settings

TITLE = 'Races'
SHARE = 8
PARALLEL = CRITICAL = True
DTYPES = (torch.bfloat16, torch.float32)
RUNS = 3
SANITIZER = 'compute-sanitizer'
TOOLS = ('memcheck', 'racecheck')
FOUND = 99  # its exit status when it finds an error
SCRIPT = """
import sys
import torch
from tools.benchmark.gpu_parts.races import repeat
from tools.benchmark.real_shapes import small_calls
for call in small_calls(sys.argv[1]):
    repeat(call, torch.float32, 'cuda', runs=1)
torch.cuda.synchronize()
"""


def tasks(settings: Settings) -> list[str]:
    return list(OPERATORS)


def run(task: str, settings: Settings, log: Log):
    """Repeat each call in deterministic mode, where every kernel promises equality."""
    if settings.dry_run:
        for call in small_calls(task):
            work = partial(repeated, call, torch.float32, settings.device)
            log.attempt(str(call), work)
        return
    for tool in TOOLS:
        log.attempt(f'{task}, {tool}', partial(sanitized, task, tool, log))
    for dtype in DTYPES:
        for call in real_calls(task):
            work = partial(repeated, call, dtype, settings.device)
            log.attempt(f'{str(dtype)[6:]}, {call}', work)


def repeat(call: Call, dtype: torch.dtype, device: str, runs: int = RUNS) -> list:
    """Return the output and the gradients of each run on the same tensors."""
    tensors = call.make_tensors(dtype=dtype, device=device)
    with deterministic():
        results = [run_with_grads(call.run_on('triton'), tensors) for _ in range(runs)]
    return [[out, *grads] for out, grads in results]


def repeated(call: Call, dtype: torch.dtype, device: str):
    first, *others = repeat(call, dtype, device)
    different = sum(
        not all(
            a is b is None or torch.equal(a, b)
            for a, b in zip(first, other, strict=True)
        )
        for other in others
    )
    yield (
        'races',
        {
            'operator': call.operator,
            'check': f'{len(others)} runs like the first',
            'dtype': str(dtype).removeprefix('torch.'),
            'call': str(call),
            'passed': not different,
        },
    )


def sanitized(task: str, tool: str, log: Log):
    """Yield whether the sanitizer found nothing in the smallest calls."""
    path = shutil.which(SANITIZER)
    row = {'operator': task, 'check': tool, 'dtype': 'float32', 'call': 'small'}
    if path is None:
        yield 'races', row | {'note': f'{SANITIZER} is not on PATH'}
        return
    command = [path, '--tool', tool, '--error-exitcode', str(FOUND)]
    command += [sys.executable, '-c', SCRIPT, task]
    environment = os.environ | {
        'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
        # The checker sees the bounds of each tensor only without PyTorch's pool.
        'PYTORCH_NO_CUDA_MEMORY_CACHING': '1',
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, log.seconds_left),
        )
    except subprocess.TimeoutExpired:
        yield 'races', row | {'note': 'stopped: no time was left'}
        return
    if done.returncode == FOUND:
        yield 'races', row | {'passed': False, 'note': done.stdout[-1500:]}
    elif done.returncode:
        # It cannot watch every device, for example not that of some virtual machines.
        why = (done.stderr or done.stdout).strip().splitlines()[-1:]
        yield 'races', row | {'note': f'it did not run: {" ".join(why)}'}
    else:
        yield 'races', row | {'passed': True}
