"""Ahead-of-time compilation of Triton launches, without a GPU.

`record_launches` notes what a launcher would start, on meta tensors; `resources`
compiles one such launch as the JIT would and reads the compiler's own report.
"""

import contextlib
import importlib
import re
import subprocess
import tempfile
from typing import Any, NamedTuple
from unittest import mock

import torch

POINTERS = {
    torch.float32: '*fp32',
    torch.float16: '*fp16',
    torch.bfloat16: '*bf16',
}
OPTIONS = ('num_warps', 'num_stages', 'maxnreg', 'enable_fp_fusion')


class Launch(NamedTuple):
    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict
    options: dict[str, int]


class _Recorder:
    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        assert min(grid) > 0
        return self._record

    def _record(self, *args, **kwargs):
        options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
        values = dict(zip(self.kernel.arg_names, args, strict=False), **kwargs)
        constexprs = {p.name for p in self.kernel.params if p.is_constexpr}
        signature, constants, attributes = {}, {}, {}
        for i, name in enumerate(self.kernel.arg_names):
            value = values.pop(name)
            if isinstance(value, torch.Tensor):
                signature[name] = POINTERS[value.dtype]
            elif name in constexprs or value is None or value == 1:
                signature[name], constants[name] = 'constexpr', value
            else:
                signature[name] = 'fp32' if isinstance(value, float) else 'i32'
            if isinstance(value, torch.Tensor) or (
                signature[name] == 'i32' and value % 16 == 0
            ):
                attributes[(i,)] = [['tt.divisibility', 16]]
        assert not values, f'unknown arguments {list(values)}'
        self.launches.append(
            Launch(
                self.kernel.fn.__module__,
                self.kernel.fn.__name__,
                signature,
                constants,
                attributes,
                options,
            )
        )


@contextlib.contextmanager
def record_launches(*modules):
    """Kernels (`_..._kernel`) of `modules` are noted instead of started."""
    launches = []
    with contextlib.ExitStack() as stack:
        for module in modules:
            for name, kernel in list(vars(module).items()):
                if name.endswith('_kernel'):
                    recorder = _Recorder(kernel, launches)
                    stack.enter_context(mock.patch.object(module, name, recorder))
        yield launches


def resources(launch: Launch, capability: int) -> dict[str, int]:
    """REG, STACK, LOCAL and SHARED of a launch's cubin, in cuobjdump's words."""
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
    compiled = triton.compile(
        source, target=GPUTarget('cuda', capability, 32), options=launch.options
    )
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(compiled.asm['cubin'])
        file.flush()
        report = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, '-res-usage', file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    usage = {
        k: int(v) for k, v in re.findall(r'(REG|STACK|LOCAL|SHARED):(\d+)', report)
    }
    usage['SHARED'] = compiled.metadata.shared
    return usage
