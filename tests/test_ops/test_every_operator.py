"""Properties of every operator and each of its kernels, on small calls.

Files of single operators have what depends on the formula.
"""

import doctest
import functools
import importlib

import pytest
import torch
from interpreter import INTERPRETED, interpreted, slowly_interpreted
from operator_cases import (
    CASES,
    OPERATORS,
    REGISTERED,
    backends_of,
    kernels,
    names_of,
    setup,
    take_form,
    with_grad,
)
from operator_checks import (
    assert_equal,
    check_empty,
    check_expanded_cotangent,
    check_operator,
    check_repeatable,
)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tools.benchmark.tolerances import assert_close, run_with_grads

every_operator = pytest.mark.parametrize('name', OPERATORS)
every_kernel = pytest.mark.parametrize(
    'case, backend, device', kernels(interpreter=[interpreted])
)
every_kernel_interpreted_slowly = pytest.mark.parametrize(
    'case, backend, device', kernels(interpreter=slowly_interpreted)
)
every_quick_kernel = pytest.mark.parametrize('case, backend, device', kernels())
every_kernel_of_queries = pytest.mark.parametrize(
    'case, backend, device',
    [x for x in kernels() if names_of(x.values[0].operator)[0] == 'q'],
)
every_call = pytest.mark.parametrize('case, backend, device', kernels(forms=False))


@pytest.fixture
def call(monkeypatch, case, backend, device):
    """Make calls of a kernel with other sizes, a dtype or a seed."""
    take_form(monkeypatch, case.form)
    return functools.partial(case.setup, backend, device=device)


def batched(case) -> list[bool]:
    """Return which tensors have an axis of the batch."""
    two, three = (case.setup(B=B)[1] for B in (2, 3))
    return [
        x is not None and x.shape[0] != y.shape[0]
        for x, y in zip(two, three, strict=True)
    ]


NODES = {'grid_conv2d', 'pointwise_linear', 'star_relu'}  # with their own tests


def test_each_registered_operator_is_here():
    registered = {
        name.removesuffix('_backward')
        for name in vars(torch.ops.mmattn)
        if hasattr(getattr(torch.ops.mmattn, name), 'default')
    }
    assert registered - NODES == REGISTERED.keys() == OPERATORS.keys()
    assert OPERATORS.keys() == {x.operator for x in CASES.values()}


@every_kernel
def test_all_tensors_in_half_precision(call, case):
    """In float16, where small maps leave gradients to the rounding of bfloat16.

    The interpreter is slow: there every other tensor has a gradient.
    """
    coarse = {'alpha', 'table_size'}.isdisjoint(case.shape)
    dtype = torch.bfloat16 if coarse else torch.float16
    function, inputs = call()
    inputs = [None if x is None else x.to(dtype) for x in inputs]
    wanted = [not INTERPRETED or i % 2 == 1 for i in range(len(inputs))]
    check_operator(function, inputs, wanted)


@every_quick_kernel
def test_gradient_of_one_input(call, case):
    function, inputs = call(B=1)
    count = len(inputs)
    for i in range(count):
        if inputs[i] is not None:
            check_operator(function, inputs, [j == i for j in range(count)])


@every_kernel_interpreted_slowly
def test_views(call, case):
    """Expanded, permuted, sliced and flipped views, and an expanded cotangent."""
    function, inputs = call(B=2)
    views = [
        lambda x: x[:1].expand_as(x),
        lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: x.flip(0).mT.contiguous().mT if x.dim() > 1 else x.flip(0),
    ]
    for shift in (0,) if INTERPRETED else range(len(views)):
        viewed = [
            None if x is None else views[(i + shift) % len(views)](x)
            for i, x in enumerate(inputs)
        ]
        check_operator(function, viewed)
    check_expanded_cotangent(function, inputs, 0)


@every_kernel
def test_nothing(call, case):
    """No image; no query, where queries are samples."""
    for axis in ('B', 'Q'):
        if axis in ('B', *case.shape):
            function, inputs = call(**{axis: 0})
            shape = function(*inputs).shape
            assert shape[0] == (0 if axis == 'B' else 2)
            check_empty(function, inputs, shape)


@every_kernel_interpreted_slowly
def test_images_do_not_mix(call, case):
    """A NaN in image 1 of three changes nothing of the other two."""
    function, inputs = call(B=3)
    clean, clean_grads = run_with_grads(function, inputs)
    own = batched(case)
    for i, x in enumerate(inputs):
        if own[i] and not (INTERPRETED and i):
            spoiled = [*inputs]
            spoiled[i] = x.clone()
            spoiled[i][1] = float('nan')
            out, grads = run_with_grads(function, spoiled)
            for of_images, a, e in zip(
                (True, *own), (out, *grads), (clean, *clean_grads), strict=True
            ):
                assert not of_images or torch.equal(a[::2], e[::2])


@every_kernel_of_queries
def test_nan_in_a_query_stays_there(call, case):
    """In its head, except where heads are mixed in one loop."""
    function, inputs = call(B=2, M=2)
    q = inputs[0] = inputs[0].clone(memory_format=torch.contiguous_format)
    q.flatten(1, -3)[0, 7, 1, 3] = float('nan')
    out, (dq, *_) = run_with_grads(function, inputs)
    for x in (out, dq):
        broken = x.flatten(1, -3).isnan().any(-1)  # (B, N, M)
        if case.operator == 'landmark_attention':
            broken = broken.any(-1)
        assert broken[0, 7].any() and broken.sum() == 1
        assert broken.dim() == 2 or broken[0, 7, 1]


@every_kernel_of_queries
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=str)
def test_large_inputs_stay_finite(call, case, dtype):
    function, (q, k, *rest) = call(dtype=dtype)
    scales = (3000, 1e-3) if case.operator.startswith('structure') else (100, 100)
    out, grads = run_with_grads(function, [q * scales[0], k * scales[1], *rest])
    present = [x for x in grads if x is not None]
    assert all(x.isfinite().all() for x in (out, *present))


@every_quick_kernel
def test_two_runs_are_equal_and_leave_inputs_and_results_alone(call, case):
    function, inputs = call()
    check_repeatable(function, inputs)
    before = [None if x is None else x.clone() for x in inputs]
    out, grads = run_with_grads(function, inputs)
    kept = out.clone(), [None if x is None else x.clone() for x in grads]
    run_with_grads(function, call(seed=1)[1])
    assert_equal((out, grads), kept)
    assert_equal((out, inputs), (out, before))


@every_quick_kernel
def test_autocast(call, case, device):
    """Attention in its dtype; what is in float32 stays there, as does a backward."""
    function, inputs = call()
    with torch.autocast(device, torch.bfloat16):
        out, grads = run_with_grads(function, inputs)
    if out.dtype == torch.bfloat16:
        count = {'ms_deform_attn': 1, 'landmark_attention': 5}.get(case.operator, 3)
        cast = [x.bfloat16() for x in inputs[:count]] + inputs[count:]
    else:
        assert case.operator == 'structure_aware_attention'
        cast = inputs
    expected, expected_grads = run_with_grads(function, cast)
    assert torch.equal(expected, out)
    for name, x, e, a in zip(
        names_of(case.operator), inputs, expected_grads, grads, strict=True
    ):
        if e is not None:
            assert a.dtype == x.dtype
            assert_close(f'grad of {name}', e, a, out.dtype)
    leaves = with_grad(inputs)
    present = [x for x in leaves if x is not None]
    with torch.autocast(device, enabled=False):
        out = function(*leaves)
        assert out.dtype == torch.float32
    expected = torch.autograd.grad(out, present, out, retain_graph=True)
    with torch.autocast(device, torch.bfloat16):
        grads = torch.autograd.grad(out, present, out)
    assert all(map(torch.equal, expected, grads))


class Recorder(TorchDispatchMode):
    """List the calls of our operators and their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == 'mmattn':
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def detached(args, requires_grad=False):
    return tuple(
        x.detach().clone().requires_grad_(requires_grad) if isinstance(x, Tensor) else x
        for x in args
    )


@every_kernel_interpreted_slowly
def test_opcheck(call, case, backend):
    function, inputs = call(B=1, dtype=torch.float32 if case.form else torch.bfloat16)
    with Recorder() as recorder:
        run_with_grads(function, inputs)
    (forward, args), (backward, saved_args) = recorder.calls
    tests = ['test_schema', 'test_faketensor']
    if backend == 'torch':  # compilers trace all backends alike
        tests += ['test_autograd_registration', 'test_aot_dispatch_dynamic']
    torch.library.opcheck(forward, detached(args, True), test_utils=tests)
    torch.library.opcheck(backward, detached(saved_args), test_utils=tests)


@every_call
@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
def test_compiled_graph_runs_other_sizes(call, case, compiler):
    attend, fixed = call()[0].func, call()[0].keywords
    fixed = {key: x for key, x in fixed.items() if key != 'grid'}

    @functools.partial(torch.compile, fullgraph=True, dynamic=True, backend=compiler)
    def compiled(grid, *tensors):
        settings = fixed if grid is None else fixed | dict(grid=grid)
        tensors = [None if x is None else 1.5 * x for x in tensors]
        return 2 * attend(*tensors, **settings)

    def expected(*tensors):
        return 2 * function(*(None if x is None else 1.5 * x for x in tensors))

    torch.compiler.reset()
    for changes in ({}, case.dynamic):
        function, inputs = call(**changes)
        grid = function.keywords.get('grid')
        out, grads = run_with_grads(functools.partial(compiled, grid), inputs)
        want, want_grads = run_with_grads(expected, inputs)
        assert_close('out', want, out)
        for i, (e, a) in enumerate(zip(want_grads, grads, strict=True)):
            if e is not None:
                assert_close(f'gradient {i}', e, a)


class Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, tensors):
        return self.function(*tensors)


@every_call
def test_export_for_other_sizes(call, case):
    sizes = {k: x for k, x in case.dynamic.items() if k not in ('grid', 'K')}
    (function, inputs), (_, others) = call(), call(**sizes)
    dims = [
        None
        if x is None
        else {
            i: torch.export.Dim.DYNAMIC
            for i, sides in enumerate(zip(x.shape, y.shape, strict=True))
            if len(set(sides)) > 1
        }
        for x, y in zip(inputs, others, strict=True)
    ]
    program = torch.export.export(
        Module(function), (inputs,), dynamic_shapes=(dims,)
    ).module()
    assert_close('out', function(*others), program(others))


@every_quick_kernel
def test_meta_tensors_and_no_graph(call, case, device):
    function, inputs = call()
    out = function(*inputs)
    assert not out.requires_grad
    if device == 'cpu':
        meta = function(*(None if x is None else x.to('meta') for x in inputs))
        assert meta.device.type == 'meta' and meta.shape == out.shape


@every_operator
def test_choice_of_the_backend(monkeypatch, name):
    """By its name, by the environment, or the first that supports the call."""
    backends = backends_of(name)
    *_, case = (x for x in CASES.values() if x.operator == name)
    take_form(monkeypatch, case.form)

    def attend(backend=None):
        function, inputs = case.setup(backend)
        with Recorder() as recorder:
            function(*with_grad(inputs))
        return recorder.calls[0][1][-1] if recorder.calls else 'reference'

    for wrong in ('cudnn', 'nonsense'):
        with pytest.raises(ValueError) as error:
            attend(wrong)
        assert all(x in str(error.value) for x in (name, *backends, 'reference', wrong))
    tensors = case.setup()[1]
    runs = [x for x in backends if x not in REGISTERED[name].unsupported(*tensors)]
    runs.append('reference')
    assert len(runs) > 1
    for backend in backends:
        if backend not in runs:
            with pytest.raises(ValueError, match=f'{backend!r} cannot run'):
                attend(backend)
    assert attend() == runs[0] and [attend(x) for x in runs] == runs
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    assert attend() == 'reference' and attend(runs[0]) == runs[0]
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        attend()


@every_operator
def test_wrong_dtypes_and_devices(name):
    function, inputs = setup(name)
    first, *rest = inputs
    with pytest.raises(ValueError, match='int64'):
        function(*(None if x is None else x.long() for x in inputs))
    if names_of(name)[0] == 'q':
        with pytest.raises(ValueError, match='float16'):
            function(first.half(), *rest)
    for i, x in enumerate(inputs):
        if x is not None:
            elsewhere = [*inputs]
            elsewhere[i] = x.to('meta')
            with pytest.raises(ValueError, match="one device.*'cpu', 'meta'"):
                function(*elsewhere)


@every_operator
def test_examples_in_docstrings_run(name):
    package = backends_of(name)['triton'].__package__
    module = importlib.import_module(f'{package}.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
