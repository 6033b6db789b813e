"""Execute the CUDA kernels on a CPU, as nvcc compiles and C++ launches them."""

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch import Tensor

from mmattn.ops.ms_deform_attn import cuda_impl

from .execute import Executed, poisoned, run_grid
from .memory import Fault, GlobalMemory, Reports
from .ptx import ENTRY, Kernel

SOURCE = Path(cuda_impl.__file__).parents[1] / 'csrc' / 'ms_deform_attn_cuda.cu'
FLAGS = ['-std=c++20', '-DUSE_CUDA', '-DTORCH_TARGET_VERSION=0x020a000000000000']
# name, parameters, their bytes, blocks, passes, threads, bytes of shared memory
LAUNCH = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_void_p, *[ctypes.c_int64] * 5
)  # fmt: skip
NAMESPACE = re.compile(r'(\w+|\(anonymous namespace\)|\{anonymous\})::')


@functools.cache
def compile_cuda(capability: int) -> dict[str, Kernel]:
    """Return the CUDA kernels by their names in C++, without namespaces."""
    include = Path(torch.__file__).parent / 'include'
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, 'kernels.ptx')
        command = ['nvcc', '-ptx', f'-arch=sm_{capability}', *FLAGS, f'-I{include}']
        command += [str(SOURCE), '-o', str(output)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        text = output.read_text()
    symbols = [found[1] for found in ENTRY.finditer(text)]
    names = subprocess.run(
        ['c++filt', *symbols], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {
        _short(name): Kernel(text, symbol)
        for name, symbol in zip(names, symbols, strict=True)
    }


def _short(name: str) -> str:
    return re.search(r'\w+_kernel<.*?>', NAMESPACE.sub('', name))[0]


@contextmanager
def executed_cuda(library: Path, capability: int) -> Iterator[list[Executed]]:
    """Execute the CUDA kernels that the backend 'cuda' launches on the CPU.

    Args:
        library: the launch code, compiled for a CPU; `mmattn_set_executor` of it takes
            a function that is called in place of a launch.
        capability: of the device to compile the kernels for.

    Raises:
        Fault: see there.
    """
    kernels, launches, faults, given = compile_cuda(capability), [], [], []
    torch.ops.load_library(library)
    set_executor = ctypes.CDLL(str(library)).mmattn_set_executor

    @LAUNCH
    def launch(name, parameters, size, blocks, passes, threads, shared):
        kernel = kernels[_short(name.decode())]
        memory = GlobalMemory(Reports(), real=True)
        for i, tensor in enumerate(given):
            memory.address(tensor, f'tensor {i}')
        data = ctypes.string_at(parameters, size)
        try:
            grid = blocks, passes, 1
            launches.append(run_grid(kernel, data, memory, grid, shared, threads))
        except Fault as fault:  # C++ would not pass it on
            faults.append(fault)

    def call(name: str, *args):
        given[:] = [x for x in args if isinstance(x, Tensor)]
        getattr(torch.ops.mmattn_emulated, name)(*args)
        if faults:
            raise faults[0]

    names = 'ms_deform_attn_forward', 'ms_deform_attn_backward'
    operators = SimpleNamespace(**{n: functools.partial(call, n) for n in names})
    set_executor(launch)
    try:
        with (
            mock.patch.object(cuda_impl, 'OPERATORS', operators),
            mock.patch.object(cuda_impl, 'unsupported', lambda *tensors: None),
            poisoned(),
        ):
            yield launches
    finally:
        set_executor(None)
