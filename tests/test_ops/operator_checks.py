"""Checks that the tests of every operator share.

An operator is a function of its tensors that also takes `backend`, and has a default
for it: the backend under test.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import chain, product

import pytest
import torch
from operator_cases import REGISTERED, setup, setup_registered
from torch import Tensor

from tools.benchmark.real_shapes import Call
from tools.benchmark.tolerances import (
    TOLERANCES,
    assert_close,
    deterministic,
    run_with_grads,
)

DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16

every_dtype = pytest.mark.parametrize('dtype', DTYPES, ids=lambda d: str(d)[6:])


def every_case(turns: int = 1, narrow: bool = True, **axes: dict[str, object]):
    """Parametrize over all combinations in float64, of which most are slow.

    The fast ones are diagonals: case i takes value i of each axis, starting over at
    its end.

    Args:
        turns: number of diagonals; each is shifted by one against the last.
        narrow: whether the other dtypes take the first diagonal, by turns.
        axes: values by their names in the test's id, by the name of the argument.
    """
    tables = [list(axis.items()) for axis in axes.values()]
    diagonals = [
        [
            tuple(table[(i + turn * k) % len(table)] for k, table in enumerate(tables))
            for i in range(max(map(len, tables)))
        ]
        for turn in range(turns)
    ]
    fast = {tuple(name for name, _ in row) for row in chain(*diagonals)}
    rows = [(row, torch.float64) for row in product(*tables)]
    rows += [(row, DTYPES[1 + i % 3]) for i, row in enumerate(diagonals[0]) if narrow]
    cases = []
    for row, dtype in rows:
        names, values = zip(*row, strict=True)
        cases.append(
            pytest.param(
                *values,
                dtype,
                id=', '.join((*names, str(dtype)[6:])),
                marks=[] if names in fast else pytest.mark.slow,
            )
        )
    return pytest.mark.parametrize([*axes, 'dtype'], cases)


def supported(backend: str, dtype: torch.dtype) -> torch.dtype:
    """Return float32 for float64 where the backend is 'cpp', which has none."""
    is_wide = backend == 'cpp' and dtype == torch.float64
    return torch.float32 if is_wide else dtype


@contextmanager
def threads(count: int):
    """Set the number of threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_operator(
    operator: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    requires_grad: Sequence[bool] | None = None,
    *,
    expected: Callable[..., Tensor] | None = None,
):
    """Compare the output and each gradient with the definition's in float64.

    Args:
        operator: the function of the inputs, and of `backend`.
        inputs: tensors or None.
        requires_grad: which inputs get gradients, all if None.
        expected: the definition, backend 'reference' if None.
    """
    expected = expected or functools.partial(operator, backend='reference')
    with deterministic(False):  # sampling in PyTorch has no such backward on a GPU
        out, grads = run_with_grads(
            expected, inputs, requires_grad, dtype=torch.float64
        )
    actual, actual_grads = run_with_grads(operator, inputs, requires_grad)
    names = list(inspect.signature(operator).parameters)[: len(inputs)]
    dtype = inputs[0].dtype
    assert actual.dtype == dtype
    assert_close('out', out, actual)
    for name, x, e, a in zip(names, inputs, grads, actual_grads, strict=True):
        assert (a is None) == (e is None), name
        if e is not None:
            assert a.dtype == x.dtype, name
            assert_close(f'grad of {name}', e, a, dtype)


def check_decomposition(name: str, **shape):
    """Compare what exported graphs hold with the definition."""
    decompose = REGISTERED[name].decomposition
    tensors, settings = setup_registered(name, **shape)
    out = setup(name, 'reference', **shape)[0](*setup(name, **shape)[1])
    assert_close('out', out, decompose(*tensors, **settings).reshape(out.shape))


def run_kernels(name: str, backend: str, tensors: Sequence, settings: dict) -> Tensor:
    """Return a backend's output, after its forward and its backward.

    The tensors and the settings are those of `torch.ops.mmattn`.
    """
    operator = REGISTERED[name]
    kernels = operator.backends[backend]
    result = kernels.forward(*tensors, **settings)
    outputs = (result,) if isinstance(result, Tensor) else result
    saved = outputs[operator.num_outputs - operator.num_saved :]
    kernels.backward(outputs[0], *saved, *tensors, **settings)
    return outputs[0]


def check_call(call: Call, backend: str, dtype: torch.dtype, device: str):
    with deterministic(call.deterministic):
        tensors = call.make_tensors(dtype=dtype, device=device)
        check_operator(call.run_on(backend), tensors)


def check_empty(operator: Callable, inputs: Sequence[Tensor | None], shape=None):
    """Check that an empty output has gradients of zeros."""
    out, grads = run_with_grads(operator, inputs)
    assert out.shape == (inputs[0].shape if shape is None else shape)
    for x, grad in zip(inputs, grads, strict=True):
        assert (grad is None) == (x is None)
        assert grad is None or (grad.shape == x.shape and not grad.any())


def assert_equal(results, others):
    """Assert that two results of `run_with_grads` are equal bit by bit."""
    assert torch.equal(results[0], others[0])
    for a, b in zip(results[1], others[1], strict=True):
        assert a is b is None or torch.equal(a, b)


def check_repeatable(operator: Callable, inputs: Sequence[Tensor | None]):
    """Check that two runs in deterministic mode are equal bit by bit."""
    with deterministic():
        first, second = (run_with_grads(operator, inputs) for _ in range(2))
    assert_equal(first, second)


def check_expanded_cotangent(operator: Callable, inputs: Sequence, index: int):
    """Check that a cotangent without storage of its own gives the same gradient."""
    inputs = list(inputs)
    leaf = inputs[index] = inputs[index].detach().requires_grad_()
    out = operator(*inputs)
    expanded, dense = (
        torch.autograd.grad(out, leaf, cotangent, retain_graph=True)[0]
        for cotangent in (torch.ones(()).expand_as(out), torch.ones_like(out))
    )
    assert torch.equal(expanded, dense)


def check_as_near_as_the_definition(operator: Callable, inputs: Sequence, largest):
    """Check scores out of the range of exp, up to `largest`.

    Errors are at most twice the definition's in float32; gradients may add the
    rounding of the log-sum-exp, which is as large as the scores.
    """
    reference = functools.partial(operator, backend='reference')
    runs = run_with_grads(operator, inputs), run_with_grads(reference, inputs)
    exact, exact_grads = run_with_grads(reference, inputs, dtype=torch.float64)
    floor = TOLERANCES[torch.float32].absolute
    rounding = torch.finfo(torch.float32).eps * largest
    for i, e in enumerate((exact, *exact_grads)):
        if e is not None:
            a, d = ((out, *grads)[i] for out, grads in runs)
            allowed = 2 * (d - e).abs().amax() + floor * (1 + e.abs().amax())
            if i:
                allowed += rounding * e.abs().amax()
            assert (a - e).abs().amax() <= allowed, i
