"""Multi-scale deformable attention in CUDA C++: dispatch, and the compiler's report.

What the kernels compute is in test_ms_deform_attn_compiled.py.
"""

import re
import shutil
import sys
from types import SimpleNamespace

import compiled_extension
import pytest
import torch
from ms_deform_cases import LEVELS, attend

from mmattn.ops import extension
from mmattn.ops.ms_deform_attn import cuda_impl
from tools.benchmark.inputs import make_ms_deform_inputs


def on_cuda(**settings):
    """Stand for a tensor on a GPU with what dispatch reads of it."""
    value, points, weights, _ = make_ms_deform_inputs(device='meta', **settings)
    return *(
        SimpleNamespace(
            device=torch.device('cuda'),
            dtype=x.dtype,
            shape=x.shape,
            requires_grad=x is value,
        )
        for x in (value, points, weights)
    ), None


def test_reasons(monkeypatch):
    inputs = make_ms_deform_inputs()
    with pytest.raises(ValueError, match='CUDA devices, got tensors on cpu'):
        attend(*inputs[:1], LEVELS, *inputs[1:], 'cuda')
    monkeypatch.setattr(extension, 'CUDA_UNAVAILABLE', 'not built')
    assert cuda_impl.unsupported(*on_cuda()) == 'not built'
    monkeypatch.setattr(extension, 'CUDA_UNAVAILABLE', None)
    assert cuda_impl.unsupported(*on_cuda()) is None
    assert 'float64' in cuda_impl.unsupported(*on_cuda(dtype=torch.float64))
    assert '3 levels of 513 points' in cuda_impl.unsupported(*on_cuda(P=513))


def test_gradients_in_no_fixed_order_are_refused_on_request(monkeypatch):
    monkeypatch.setattr(extension, 'CUDA_UNAVAILABLE', None)
    monkeypatch.setattr(torch, 'are_deterministic_algorithms_enabled', lambda: True)
    assert 'no fixed order' in cuda_impl.unsupported(*on_cuda())
    with torch.no_grad():
        assert cuda_impl.unsupported(*on_cuda()) is None
    with pytest.raises(RuntimeError, match='no deterministic gradient'):
        cuda_impl.backward(None, *on_cuda(), shapes=[])


def test_extension_of_the_cpu_alone_has_a_reason(monkeypatch):
    monkeypatch.setattr(torch.ops, 'mmattn_extension', SimpleNamespace())
    assert 'no CUDA kernels' in extension.reason_without_cuda()


@pytest.fixture(scope='module')
def built():
    """The library for sm_80 and sm_90, and what the assembler says of its kernels."""
    if torch.version.cuda is None:
        pytest.skip('PyTorch has no CUDA')
    return compiled_extension.build(
        'cuda',
        CUDA_HOME=compiled_extension.cuda_home(),
        TORCH_CUDA_ARCH_LIST='8.0;9.0',
        NVCC_APPEND_FLAGS='--ptxas-options=-v',
    )


@pytest.mark.slow
@compiled_extension.needs('nvcc')
def test_library_loads_and_has_cuda_kernels(built):
    program = (
        'import sys; from pathlib import Path; from mmattn.ops import extension\n'
        'assert extension.load(Path(sys.argv[1])) is None\n'
        'print(extension.reason_without_cuda())'
    )
    if extension.UNAVAILABLE is None:
        pytest.skip('another one is installed')
    printed = compiled_extension.run([sys.executable, '-c', program, str(built[0])])
    assert printed.strip() == 'None'


@pytest.mark.slow
@compiled_extension.needs('nvcc')
def test_nothing_spills(built):
    kernels = re.findall(r'(\d+) bytes stack frame, (\d+) bytes spill stores', built[1])
    assert len(kernels) == 2 * (6 + 12)  # capabilities; forward and backward
    assert set(kernels) == {('0', '0')}


@pytest.mark.slow
@compiled_extension.needs('nvcc')
@pytest.mark.parametrize('capability', [80, 90])
def test_memory_is_accessed_in_packets(built, capability):
    """Pixels in 16 bytes, samples in shared memory, too; sums by 16 bytes on sm_90."""
    cuobjdump = shutil.which('cuobjdump')
    if cuobjdump is None:
        triton = pytest.importorskip('triton', reason='brings cuobjdump')
        cuobjdump = triton.knobs.nvidia.cuobjdump.path
    code = compiled_extension.run(
        [cuobjdump, '-sass', '-arch', f'sm_{capability}', str(built[0])]
    )
    _, *kernels = code.split('Function : ')
    assert len(kernels) == 18
    for kernel in kernels:
        name = kernel.partition('\n')[0]
        operations = re.findall(r'\b((?:LDG|LDS|LDL|STL|REDG?|ATOMG?)\.\S+)', kernel)
        assert not any(x.startswith(('LDL', 'STL', 'ATOM')) for x in operations), name
        assert any(x.startswith('LDS.128') for x in operations), name
        width = int(re.search(r'Li(\d)E', name).group(1))
        wide = sum(x.startswith('LDG.E.128') for x in operations)
        assert wide >= 4 if width > 1 else wide == 0, name
        sums = {x.partition('ADD.')[2][:5] for x in operations if x.startswith('RED')}
        vectors = capability >= 90 and width > 1
        if 'backward' in name:
            assert sums == {'F32x4' if vectors else 'F32.F'}, name
        else:
            assert not sums, name
