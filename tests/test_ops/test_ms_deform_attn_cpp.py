"""Multi-scale deformable attention in C++: dispatch, threads, instruction sets."""

import os
import subprocess
import sys

import compiled_extension
import pytest
import torch
from ms_deform_cases import LEVELS, attend, every_form, setup
from operator_checks import check_operator

from mmattn.ops import extension, ms_deform_attn
from mmattn.ops.ms_deform_attn import cpp_impl
from tools.benchmark.inputs import make_ms_deform_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

slow = pytest.mark.slow
every_dtype = pytest.mark.parametrize('dtype', [torch.float32, torch.float16], ids=str)
ON_ANOTHER_INSTRUCTION_SET = """
import sys
import torch
from mmattn.ops import extension, fused_ms_deform_attn

library, inputs, outputs = sys.argv[1:]
if extension.UNAVAILABLE:
    assert extension.load(library) is None
    extension.UNAVAILABLE = None
tensors = [x.requires_grad_() for x in torch.load(inputs)]
value, points, weights, reference = tensors
out = fused_ms_deform_attn(
    value, [(7, 5), (4, 3), (1, 1)], reference, points, weights, backend='cpp'
)
torch.save([out.detach(), *torch.autograd.grad(out.square().sum(), tensors)], outputs)
"""


@pytest.fixture
def built(monkeypatch):
    compiled_extension.load_extension()
    monkeypatch.setattr(extension, 'UNAVAILABLE', None)


def test_reason_says_how_to_build(tmp_path, monkeypatch):
    monkeypatch.setattr(extension, 'UNAVAILABLE', extension.load_built(tmp_path))
    inputs = make_ms_deform_inputs()
    with pytest.raises(ValueError, match='not built .MMATTN_BUILD_OPS=1 pip install'):
        attend(*inputs[:1], LEVELS, *inputs[1:], 'cpp')


def test_library_that_does_not_load_is_reported(tmp_path, caplog):
    path = tmp_path / '_extension.so'
    path.write_bytes(b'not a library')
    reason = extension.load_built(tmp_path)
    assert str(path) in reason and 'rebuild' in reason
    assert reason in caplog.text


def test_reasons_by_device_and_dtype(monkeypatch):
    monkeypatch.setattr(extension, 'UNAVAILABLE', None)
    inputs = make_ms_deform_inputs()
    assert cpp_impl.unsupported(*inputs) is None
    assert 'meta' in cpp_impl.unsupported(inputs[0].to('meta'), *inputs[1:])
    narrow = inputs[1].to(torch.float8_e5m2)
    assert 'float8' in cpp_impl.unsupported(inputs[0], narrow, *inputs[2:])


def test_splits(monkeypatch):
    """As few as give each thread a head, and none on request."""
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 20)
    assert cpp_impl._num_splits(8, 22223) == 3
    assert cpp_impl._num_splits(32, 22223) == 1
    assert cpp_impl._num_splits(8, 300) == 1
    monkeypatch.setattr(torch, 'are_deterministic_algorithms_enabled', lambda: True)
    assert cpp_impl._num_splits(8, 22223) == 1


@slow
@compiled_extension.needs('c++')
@every_form
def test_more_threads_than_heads(built, form, monkeypatch):
    """Shares of the gradient of values; on request, what a single thread computes."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(cpp_impl, 'MIN_SPLIT_QUERIES', 4)
    function, inputs = setup('cpp', dtype=torch.bfloat16, B=1, M=1, Q=37, **form)
    try:
        torch.set_num_threads(3)
        assert cpp_impl._num_splits(1, 37) == 3
        check_operator(function, inputs)
        torch.use_deterministic_algorithms(True)
        many = run_with_grads(function, inputs)[1]
        torch.set_num_threads(1)
        one = run_with_grads(function, inputs)[1]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    pairs = zip(many, one, strict=True)
    assert all(x is None or torch.equal(x, y) for x, y in pairs)


@slow
@compiled_extension.needs('c++')
def test_half_precision_is_converted_as_pytorch_does(built):
    """Every finite number is read, and sums are rounded to the nearest."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    place, one = torch.full((1, 1, 1, 1, 1, 2), 0.5), torch.ones(1, 1, 1, 1, 1)
    for dtype in (torch.float16, torch.bfloat16):
        number = bits.view(dtype)
        value = number[number.isfinite()].view(1, 1, 1, -1)
        for weight in (1.0, 0.3, 1 + 2**-9, 2**-10, 3.0):
            out = ms_deform_attn(value, [(1, 1)], place, one * weight, backend='cpp')
            expected = (value.float() * (one * weight).item()).to(dtype)
            assert torch.equal(out.view(-1), expected.view(-1))


@slow
@compiled_extension.needs('c++')
@every_dtype
def test_instruction_sets_agree(tmp_path, dtype):
    """PyTorch's variable asks for the lesser."""
    library = compiled_extension.build_extension()
    inputs = make_ms_deform_inputs(D=37, fused=True, dtype=dtype)
    torch.save(inputs, tmp_path / 'inputs')
    results = []
    for capability in ('default', 'avx2'):
        subprocess.run(
            [sys.executable, '-c', ON_ANOTHER_INSTRUCTION_SET]
            + [library, tmp_path / 'inputs', tmp_path / 'outputs'],
            env=os.environ | {'ATEN_CPU_CAPABILITY': capability},
            check=True,
        )
        results.append(torch.load(tmp_path / 'outputs'))
    names = 'out', 'value', 'points', 'weights', 'reference'
    for name, expected, actual in zip(names, *results, strict=True):
        assert_close(name, expected, actual, dtype)


@slow
@compiled_extension.needs('c++')
def test_is_chosen_on_cpus(built):
    function, inputs = setup(None)
    with torch.profiler.profile() as profile:
        function(*inputs)
    names = {event.name for event in profile.events()}
    assert 'mmattn_extension::ms_deform_attn_forward' in names
