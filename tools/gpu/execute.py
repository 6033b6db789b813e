"""Execute the launches of Triton's kernels on a CPU, as compiled for a device.

    with executed(90) as launches:
        run_with_grads(call.run_on('triton'), call.make_tensors(device='cpu'))

Launchers run as on a GPU. `launches` has what was executed, with its reports.
"""

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import torch

from mmattn.ops.common.operator import OPERATORS
from mmattn.ops.triton import launch as triton_launch

from . import arithmetic, machine, tensor_cores, transfers
from .compile import compile_launch, describe
from .machine import Machine
from .memory import TRUNCATED, GlobalMemory, Reports
from .ptx import Kernel

BATCH = 4096  # threads
# By the first part of a name.
INSTRUCTIONS = dict.fromkeys(arithmetic.FUNCTIONS, arithmetic.compute) | {
    'bra': machine.branch, 'ret': machine.end, 'exit': machine.end,
    'ld': transfers.load, 'st': transfers.store,
    'atom': transfers.add_atomically, 'red': transfers.add_atomically,
    'cp': transfers.copy_asynchronously, 'fence': transfers.fence,
    'membar': transfers.fence, 'griddepcontrol': transfers.nothing,
    'bar': transfers.barrier, 'barrier': transfers.barrier,
    'shfl': transfers.shuffle, 'redux': transfers.reduce_warp,
    'ldmatrix': tensor_cores.load_matrix, 'stmatrix': tensor_cores.store_matrix,
    'mma': tensor_cores.multiply, 'wgmma': tensor_cores.multiply_asynchronously,
}  # fmt: skip
parsed = functools.lru_cache(maxsize=64)(Kernel)
# Executes PTX with arguments on a memory, in a grid with some bytes of shared memory.
Run = Callable[[str, Sequence, GlobalMemory, tuple[int, ...], int], 'Executed']


class Executed(NamedTuple):
    """Hold a launch: its kernel and grid, what was wrong and what was executed.

    `digest` is equal for launches that leave the same bits in their tensors.
    """

    kernel: str
    grid: tuple[int, int, int]
    reports: Counter
    counts: Counter
    digest: bytes


@contextlib.contextmanager
def poisoned():
    """Fill new tensors of floats with NaN, which kernels must overwrite.

    A dispatch mode would not see the tensors that a registered operator makes.
    """

    def fills(make):
        def filled(*args, **kwargs):
            out = make(*args, **kwargs)
            return out.fill_(float('nan')) if out.is_floating_point() else out

        return filled

    makers = (torch, 'empty'), (torch, 'empty_like'), (torch.Tensor, 'new_empty')
    with contextlib.ExitStack() as stack:
        for owner, name in makers:
            make = fills(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, make))
        yield


def run_grid(
    kernel: Kernel, parameters: bytes, memory: GlobalMemory, grid: Sequence[int],
    shared_bytes: int, threads: int | None = None,
) -> Executed:  # fmt: skip
    """Execute the programs of a grid.

    `threads` of a program are the kernel's unless given.

    Raises:
        Fault: see there.
    """
    grid, counts, threads = (*grid, 1, 1)[:3], Counter(), threads or kernel.threads
    programs, batch = range(math.prod(grid)), max(1, BATCH // threads)
    for first in programs[::batch]:
        some = programs[first : first + batch]
        Machine(
            kernel, memory, parameters, some, grid, threads, shared_bytes, counts
        ).run(INSTRUCTIONS)
    reports = memory.reports.found
    return Executed(kernel.name, grid, reports, counts, memory.digest())


def run_ptx(
    ptx: str, arguments: Sequence, memory: GlobalMemory, grid: Sequence[int],
    shared_bytes: int,
) -> Executed:  # fmt: skip
    """Execute PTX, see `run_grid`."""
    kernel = parsed(ptx)
    return run_grid(kernel, kernel.pack(arguments), memory, grid, shared_bytes)


@contextlib.contextmanager
def executed(capability: int, run_ptx: Run = run_ptx) -> Iterator[list[Executed]]:
    """Execute the launches of Triton's kernels on tensors of the CPU.

    Args:
        capability: of the device to compile for, such as 90.
        run_ptx: what executes a launch.
    """
    from triton.runtime import JITFunction

    launches = []

    def run(kernel, *args, grid, warmup, **kwargs):
        values = dict(zip(kernel.arg_names, args, strict=False), **kwargs)
        launch = describe(kernel, args, kwargs, grid)
        compiled = compile_launch(launch, capability, assemble=False)
        # In tf32x3 what rounding leaves of a number is an operand, too.
        precisions = f'{launch.constants} {compiled.asm["ttir"]}'
        memory = GlobalMemory(Reports(TRUNCATED if 'tf32x3' in precisions else ''))
        passed = [
            memory.address(values[name], name) if value is None else value
            for name, value in launch.arguments.items()
        ]
        ptx, shared = compiled.asm['ptx'], compiled.metadata.shared
        launches.append(run_ptx(ptx, passed, memory, grid, shared))

    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(JITFunction, 'run', run))
        tiles = triton_launch.tile_capability(*divmod(capability, 10))
        enter(mock.patch.object(triton_launch, 'capability', lambda x: tiles))
        for operator in OPERATORS.values():
            kernels = operator.backends['triton']
            enter(mock.patch.object(kernels, 'unsupported', lambda *tensors: None))
        enter(poisoned())
        yield launches
