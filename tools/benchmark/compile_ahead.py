"""Compile the kernels of Triton that `tools.benchmark.check` runs, in all cores.

    python -m tools.benchmark.compile_ahead masked_attention

Triton keeps them on disk, where the comparisons find them. Each process takes a call at
a time and launches its kernels on meta tensors, which only compiles them.
"""

import argparse
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from unittest import mock

import torch

from mmattn.cli.terminal import positive, run_main
from mmattn.ops.triton import launch as triton_launch
from tools.benchmark import measure
from tools.benchmark.check import Comparison, comparisons
from tools.benchmark.real_shapes import OPERATORS, real_calls, small_calls
from tools.benchmark.tolerances import deterministic
from tools.gpu.report import operator_arguments


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


def compile_all(planned: list[Comparison], capability: int, workers: int):
    """Compile for all comparisons, and print each as it is done."""
    tasks = dict.fromkeys(
        (x.call.operator, str(x.call), x.dtype, capability)
        for x in planned
        if x.backend == 'triton'
    )
    context = multiprocessing.get_context('spawn')  # CUDA does not survive a fork
    with ProcessPoolExecutor(workers, context) as pool:
        done = pool.map(compile_call, *zip(*tasks, strict=True))
        for i, name in enumerate(done, 1):
            measure.progress(f'compiled {i} of {len(tasks)}: {name}')


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('operators', nargs='*', metavar='OPERATOR', help='default: all')
    parser.add_argument('--workers', type=positive, default=os.cpu_count())
    args = parser.parse_args(argv)
    if unknown := {*args.operators} - {*OPERATORS}:
        parser.error(f'OPERATOR must be of {OPERATORS}, got {sorted(unknown)}')
    if not torch.cuda.is_available():
        parser.error('PyTorch sees no CUDA device')
    major, minor = torch.cuda.get_device_capability()
    planned = [*comparisons(args.operators or OPERATORS, 'cuda', quick=False)]
    compile_all(planned, 10 * major + minor, args.workers)
    return 0


if __name__ == '__main__':
    run_main(main)
