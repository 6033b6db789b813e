"""Every kernel of Triton is right as compiled: its PTX is executed on a CPU.

A report is a race, a read before its wait, or a read of what nothing wrote. A fault is
an access out of bounds, a wrong barrier, or a loop without an end.
"""

from itertools import cycle, product

import compiled_extension
import pytest
import torch
from interpreter import INTERPRETED
from operator_cases import setup
from operator_checks import check_operator

from mmattn.models.layers import StarReLU
from tools.benchmark.real_shapes import OPERATORS, Call, odd_calls, small_calls

pytest.importorskip('triton')
if INTERPRETED:
    pytest.skip('the interpreter compiles no kernels', allow_module_level=True)

from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from tools.benchmark.check import compile_call
from tools.gpu.compile import compile_launch, describe
from tools.gpu.cuda import executed_cuda
from tools.gpu.execute import executed
from tools.gpu.prove import prove
from tools.gpu.report import passes

DTYPES = torch.float32, torch.bfloat16, torch.float16
FAST = (80, torch.float32), (90, torch.bfloat16)
SMALL = [call for name in OPERATORS for call in small_calls(name)]
ODD = [call for name in OPERATORS for call in odd_calls(name)]
CAPABILITIES = 80, 86, 89, 90, 120


def check(call: Call, capability: int, dtype: torch.dtype):
    proof = prove(call, capability, dtype)
    assert not proof.fault and not proof.reports
    assert proof.error <= 1
    assert len(proof.launches) >= 2
    for launch in proof.launches:
        assert launch.counts['st'] + launch.counts['red'] + launch.counts['atom']


def name_of(value) -> str | None:
    return f'{value.operator}, {value}' if isinstance(value, Call) else None


def quickest(call: Call):
    """Leave to slow tests a grid whose kernels another grid of more parts runs."""
    return pytest.mark.slow if 'grid (5, 7)' in str(call) else ()


@pytest.mark.parametrize(
    'call, target',
    [pytest.param(*row, marks=quickest(row[0])) for row in zip(SMALL, cycle(FAST))],
    ids=name_of,
)
def test_small_calls(call, target):
    check(call, *target)


@pytest.mark.slow
@pytest.mark.parametrize('target', [*product((80, 90), DTYPES[:2])], ids=str)
@pytest.mark.parametrize('call', SMALL, ids=name_of)
def test_all_small_calls(call, target):
    check(call, *target)


@pytest.mark.slow
@pytest.mark.parametrize('capability', CAPABILITIES)
@pytest.mark.parametrize('call, dtype', [*zip(ODD, cycle(DTYPES))], ids=name_of)
def test_odd_shapes(call, dtype, capability):
    check(call, capability, dtype)


@pytest.mark.slow
@pytest.mark.parametrize('call', SMALL, ids=name_of)
def test_sm_100_compiles(call):
    """Its products are not executed here: tcgen05 has a memory of its own."""
    for launches, *_ in passes(call, 90).values():
        for launch in launches:
            assert compile_launch(launch, 100).asm['cubin']


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('capability', [80, 90])
def test_star_relu(capability, dtype, monkeypatch):
    monkeypatch.setattr('mmattn.ops.common.extension.UNAVAILABLE', 'not built')
    monkeypatch.setattr('mmattn.ops.triton.launch.reason', lambda *_: None)
    monkeypatch.setattr('mmattn.ops.common.star_relu.TARGET_PROGRAMS', 2)

    def function(x, scale, bias):
        act = StarReLU().to(scale.dtype)
        return torch.func.functional_call(act, dict(scale=scale, bias=bias), x)

    def definition(x, scale, bias):
        return scale * x.relu().square() + bias

    torch.manual_seed(0)  # a sum near 0 would have the error of its terms
    x = torch.randn(2, 5, 9, 101, dtype=dtype)
    inputs = x, torch.tensor([0.7]), torch.tensor([-0.3])
    with executed(capability) as launches:
        check_operator(function, inputs, expected=definition)
    assert [launch.grid[0] for launch in launches] == [9, 2]
    assert not any(launch.reports for launch in launches)


CUDA = {
    'locations': dict(),
    'boxes, width 71': dict(fused=True, boxes=True, D=71, P=3),
    'points, two passes': dict(fused=True, D=264, Q=3, M=1),
    'a slice': dict(D=33),
}


@pytest.mark.slow
@compiled_extension.needs('nvcc')
@compiled_extension.needs('c++')
@pytest.mark.parametrize('capability', [80, 90])
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shape', CUDA.values(), ids=CUDA)
def test_cuda_kernels(shape, dtype, capability):
    library = compiled_extension.load_emulation()
    sizes = dict(shapes=((9, 7), (4, 3), (1, 1)), Q=7, B=2, M=2, D=32, P=4) | shape
    function, inputs = setup('ms_deform_attn', 'cuda', dtype=dtype, **sizes)
    if sizes['D'] == 33:
        inputs[0] = inputs[0][..., :32]  # whose rows are not aligned
    with executed_cuda(library, capability) as launches:
        check_operator(function, inputs)
    assert len(launches) == 2 and not any(launch.reports for launch in launches)


class Device:
    """Stand in for the driver of a device of sm_90."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget('cuda', 90, 32)

    def get_current_device(self) -> int:
        return 99  # whose compiled kernels no real device takes

    def get_current_stream(self, device: int) -> int:
        return 0


def test_what_is_executed_is_what_a_launch_compiles(monkeypatch):
    """The code is the JIT's, and so is its place on disk after compiling ahead."""
    launch, launched = JITFunction.run, []

    def run(kernel, *args, grid, warmup, **kwargs):
        compiled = launch(kernel, *args, grid=grid, warmup=True, **kwargs)
        launched.append((compiled, describe(kernel, args, kwargs, grid)))

    monkeypatch.setattr(JITFunction, 'run', run)
    monkeypatch.setattr(type(driver), 'active', Device())
    call = small_calls('ms_deform_attn')[1]
    compile_call(call.operator, str(call), torch.float32, 90)
    assert len(launched) == 3
    for compiled, described in launched:
        executed = compile_launch(described, 90, assemble=False)
        assert compiled.asm['ptx'] == executed.asm['ptx']
