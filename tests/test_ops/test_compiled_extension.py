"""The compiled extension: dispatch, threads, instruction sets, the compilers' reports.

What the kernels compute is in test_ms_deform_attn_kernels.py.
"""

import re
import sys
from functools import partial
from types import SimpleNamespace

import compiled_extension
import pytest
import torch
from operator_cases import every_form
from operator_cases import setup as setup_operator
from operator_checks import assert_equal, check_operator, threads

from mmattn.ops import ms_deform_attn
from mmattn.ops.common import extension
from mmattn.ops.ms_deform_attn import cpp_impl, cuda_impl
from tools.benchmark.inputs import make_ms_deform_inputs
from tools.benchmark.tolerances import deterministic, run_with_grads

setup = partial(setup_operator, 'ms_deform_attn')
slow = pytest.mark.slow
TESTED = (
    'every_operator',
    'deformable_attention',
    'landmark_attention',
    'masked_attention',
    'ms_deform_attn_kernels',
    'neighborhood_attention',
    'structure_aware_attention',
)


def test_what_make_compiles_is_used():
    library = compiled_extension.ROOT / 'mmattn/ops/_extension.so'
    log = compiled_extension.ROOT / 'build/operators.log'
    if library.exists():
        assert extension.UNAVAILABLE is None
    else:
        assert not log.exists(), f'nothing was compiled:\n{log.read_text()[-2000:]}'


def test_reason_says_how_to_build(tmp_path, monkeypatch):
    monkeypatch.setattr(extension, 'UNAVAILABLE', extension.load_built(tmp_path))
    function, inputs = setup('cpp')
    with pytest.raises(ValueError, match='not built .MMATTN_BUILD_OPS=1 pip install'):
        function(*inputs)


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
    assert cpp_impl.unsupported(inputs[0].to('meta'), *inputs[1:]) is None
    narrow = inputs[1].to(torch.float8_e5m2)
    assert 'float8' in cpp_impl.unsupported(inputs[0], narrow, *inputs[2:])


@slow
@compiled_extension.needs('c++')
@every_form
def test_more_threads_than_heads(compiled, form, monkeypatch):
    """Shares of the gradient of values; on request, what a single thread computes."""
    monkeypatch.setattr(cpp_impl, 'MIN_SPLIT_QUERIES', 4)
    function, inputs = setup('cpp', dtype=torch.bfloat16, B=1, M=1, Q=37, **form)
    with threads(3):
        assert cpp_impl._num_splits(1, 37) == 3
        check_operator(function, inputs)
        with deterministic():
            many = run_with_grads(function, inputs)
    with threads(1), deterministic():
        assert_equal(many, run_with_grads(function, inputs))


@slow
@compiled_extension.needs('c++')
def test_half_precision_is_converted_as_pytorch_does(compiled):
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
@pytest.mark.parametrize('capability', ['default', 'avx2'])
def test_tests_pass_on_other_instruction_sets(capability):
    tests = [f'tests/test_ops/test_{name}.py' for name in TESTED]
    command = [sys.executable, '-m', 'pytest', '-q', '-k', 'cpp', *tests]
    compiled_extension.run(command, ATEN_CPU_CAPABILITY=capability, OMP_NUM_THREADS='1')


@slow
@compiled_extension.needs('c++')
@compiled_extension.needs('objdump')
def test_library_runs_on_older_systems():
    """It needs no symbol newer than glibc 2.28's, and none of Python's."""
    symbols = compiled_extension.run(
        ['objdump', '-T', str(compiled_extension.build_extension())]
    )
    for name, newest in (('GLIBC', (2, 28)), ('GLIBCXX', (3, 4, 25))):
        versions = re.findall(rf'\b{name}_([\d.]+)', symbols)
        assert max(tuple(map(int, x.split('.'))) for x in versions) <= newest
    assert 'Py' not in symbols


@pytest.fixture(scope='module')
def clang(tmp_path_factory):
    """Return the command of a Clang that compiles for other systems, and its folder."""
    folder = tmp_path_factory.mktemp('ziglang')
    pip = [sys.executable, '-m', 'pip', 'install', '-q', '--target', str(folder)]
    compiled_extension.run([*pip, 'ziglang'])
    return [str(folder / 'ziglang' / 'zig'), 'c++'], folder


@slow
@pytest.mark.parametrize(
    'target', ['x86_64-linux-gnu', 'aarch64-linux-gnu', 'x86_64-macos', 'aarch64-macos']
)
def test_clang_compiles_and_links_it(clang, target):
    compiler, folder = clang
    compiler = [*compiler, '-target', target]
    flags = ['-std=c++20', '-O0', '-fPIC', '-Wall', '-Werror', '-ffp-contract=fast']
    flags += [compiled_extension.STABLE_ABI, *compiled_extension.INCLUDES]
    flags += ['-include', str(compiled_extension.CSRC / 'old_glibc.h')]
    objects = []
    for source in sorted(compiled_extension.CSRC.glob('*.cpp')):
        objects.append(str(folder / f'{target}-{source.stem}.o'))
        compiled_extension.run(
            [*compiler, *flags, '-c', str(source), '-o', objects[-1]]
        )
    link = ['-shared', '-Wl,-S']
    link += ['-undefined', 'dynamic_lookup'] if 'macos' in target else []
    compiled_extension.run([*compiler, *link, *objects, '-o', str(folder / target)])


@slow
@compiled_extension.needs('c++')
def test_is_chosen_on_cpus(compiled):
    function, inputs = setup(None)
    with torch.profiler.profile() as profile:
        function(*inputs)
    names = {event.name for event in profile.events()}
    assert 'mmattn_extension::ms_deform_attn_forward' in names


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


def test_reasons_of_cuda(monkeypatch):
    function, inputs = setup('cuda')
    with pytest.raises(ValueError, match='CUDA devices, got tensors on cpu'):
        function(*inputs)
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
def built_cuda():
    """The library for sm_80 and sm_90, and what the assembler says of its kernels."""
    if torch.version.cuda is None:
        pytest.skip('PyTorch has no CUDA')
    return compiled_extension.build(
        'cuda',
        CUDA_HOME=compiled_extension.cuda_home(),
        TORCH_CUDA_ARCH_LIST='8.0;9.0',
        NVCC_APPEND_FLAGS='--ptxas-options=-v',
    )


@slow
@compiled_extension.needs('nvcc')
def test_library_loads_and_has_cuda_kernels(built_cuda):
    program = (
        'import sys\nfrom pathlib import Path\n'
        'from mmattn.ops.common import extension\n'
        'assert extension.load(Path(sys.argv[1])) is None\n'
        'print(extension.reason_without_cuda())'
    )
    if extension.UNAVAILABLE is None:
        pytest.skip('another one is installed')
    printed = compiled_extension.run(
        [sys.executable, '-c', program, str(built_cuda[0])]
    )
    assert printed.strip() == 'None'


@slow
@compiled_extension.needs('nvcc')
def test_nothing_spills(built_cuda):
    kernels = re.findall(
        r'(\d+) bytes stack frame, (\d+) bytes spill stores', built_cuda[1]
    )
    assert len(kernels) == 2 * (6 + 12)  # capabilities; forward and backward
    assert set(kernels) == {('0', '0')}
