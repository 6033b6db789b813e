"""Ahead-of-time compilation of Triton launches, without a GPU.

`record_launches` notes what launchers would start, on meta tensors. `compile_launch`
compiles one such launch as the JIT would, and `resources` reads the compiler's report.
"""

import contextlib
import importlib
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from mmattn.ops.triton import launch as triton_launch

POINTERS = {
    torch.float32: '*fp32',
    torch.float16: '*fp16',
    torch.bfloat16: '*bf16',
    torch.int32: '*i32',
    torch.int64: '*i64',
}
OPTIONS = ('num_warps', 'num_stages', 'maxnreg', 'enable_fp_fusion')


@dataclass(frozen=True)
class Launch:
    """Describe a launch. Two with the same `repr` compile to the same code.

    Args:
        module, kernel: where the kernel is.
        signature, constants, attributes, options: what it is compiled for.
        programs: size of the grid.
        arguments: values by name of the arguments that are not constants, None for
            tensors.
    """

    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict
    options: dict[str, int]
    programs: int = field(repr=False)
    arguments: dict[str, int | float | None] = field(repr=False)


def describe(kernel, args, kwargs, grid) -> Launch:
    """Return the launch of a kernel with these arguments, as the JIT specializes it."""
    options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False), **kwargs)
    constexprs = {p.name for p in kernel.params if p.is_constexpr}
    fixed = {p.name for p in kernel.params if p.do_not_specialize}
    signature, constants, attributes, arguments = {}, {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        value = values.pop(name)
        if isinstance(value, torch.Tensor):
            signature[name], arguments[name] = POINTERS[value.dtype], None
        elif (
            name in constexprs
            or value is None
            or (type(value) is int and value == 1 and name not in fixed)
        ):
            signature[name], constants[name] = 'constexpr', value
        else:
            integer = 'i32' if abs(value) < 2**31 else 'i64'
            signature[name] = 'fp32' if isinstance(value, float) else integer
            arguments[name] = value
        number = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if signature[name] not in ('constexpr', 'fp32') and (
            number % 16 == 0 and name not in fixed
        ):
            attributes[(i,)] = [['tt.divisibility', 16]]
    assert not values, f'unknown arguments {list(values)}'
    return Launch(
        kernel.fn.__module__, kernel.fn.__name__, signature, constants, attributes,
        options, math.prod(grid), arguments,
    )  # fmt: skip


@contextlib.contextmanager
def record_launches(capability: int = 80) -> Iterator[list[Launch]]:
    """Note Triton's launches on a device of a capability instead of starting them."""
    from triton.runtime import JITFunction

    launches = []

    def run(kernel, *args, grid, warmup, **kwargs):
        assert min(grid) > 0
        launches.append(describe(kernel, args, kwargs, grid))

    with (
        mock.patch.object(JITFunction, 'run', run),
        mock.patch.object(triton_launch, 'capability', lambda x: capability),
    ):
        yield launches


def compile_launch(launch: Launch, capability: int, assemble: bool = True):
    """Return Triton's compiled kernel, which Triton keeps on disk.

    Args:
        launch, capability: what to compile, and for which device.
        assemble: False to end at the PTX, which takes less time.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(launch.module), launch.kernel)
    source = ASTSource(
        fn=kernel,
        signature=launch.signature,
        constexprs={
            (kernel.arg_names.index(k),): v for k, v in launch.constants.items()
        },
        attrs=launch.attributes,
    )
    target = GPUTarget('cuda', capability, 32)
    hook = None if assemble else _without_cubin
    with mock.patch.object(triton.knobs.runtime, 'add_stages_inspection_hook', hook):
        return triton.compile(source, target=target, options=launch.options)


def _without_cubin(backend=None, stages=None, *_):
    """Leave the assembler out. Without arguments, return a key of Triton's cache."""
    if stages is None:
        return 'PTX only', 'PTX only'
    stages['cubin'] = lambda ptx, metadata: b''


def ptx(launch: Launch, capability: int) -> str:
    """Return a launch's PTX."""
    return compile_launch(launch, capability).asm['ptx']


def _run_on_cubin(tool, compiled, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(compiled.asm['cubin'])
        file.flush()
        command = [tool.path, option, file.name]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout


def resources(launch: Launch, capability: int) -> dict[str, int]:
    """Return REG, STACK, LOCAL and SHARED of a launch, as cuobjdump names them."""
    import triton

    compiled = compile_launch(launch, capability)
    report = _run_on_cubin(triton.knobs.nvidia.cuobjdump, compiled, '-res-usage')
    usage = {
        k: int(v) for k, v in re.findall(r'(REG|STACK|LOCAL|SHARED):(\d+)', report)
    }
    usage['SHARED'] = compiled.metadata.shared
    return usage


def machine_code(launch: Launch, capability: int) -> str:
    """Return a launch's disassembly (SASS)."""
    import triton

    compiled = compile_launch(launch, capability)
    return _run_on_cubin(triton.knobs.nvidia.nvdisasm, compiled, '-c')
