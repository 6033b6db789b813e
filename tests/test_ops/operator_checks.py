"""Checks that the tests of every operator share.

An operator is a function of its tensors that also takes `backend`, and has a default
for it: the backend under test.
"""

import functools
import inspect
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tools.benchmark.real_shapes import Call, real_calls
from tools.benchmark.tolerances import assert_close, deterministic, run_with_grads

DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16

every_dtype = pytest.mark.parametrize('dtype', DTYPES, ids=lambda d: str(d)[6:])


def every_case_in_float64(**axes: dict[str, object]):
    """Parametrize over all combinations in float64, and over some in other dtypes.

    Those are a diagonal: case i takes value i of each axis, starting over at its end.

    Args:
        axes: values by their names in the test's id, by the name of the argument.
    """
    tables = [list(axis.items()) for axis in axes.values()]
    rows = [((), ())]
    for table in tables:
        rows = [((*names, n), (*row, v)) for names, row in rows for n, v in table]
    cases = [
        pytest.param(*row, torch.float64, id=', '.join((*names, 'float64')))
        for names, row in rows
    ]
    for i in range(max(map(len, (*tables, DTYPES[1:])))):
        names, row = zip(*(table[i % len(table)] for table in tables), strict=True)
        dtype = DTYPES[1 + i % 3]
        cases.append(pytest.param(*row, dtype, id=', '.join((*names, str(dtype)[6:]))))
    return pytest.mark.parametrize([*axes, 'dtype'], cases)


def names_of(operator: Callable, inputs: Sequence) -> list[str]:
    return list(inspect.signature(operator).parameters)[: len(inputs)]


def check_operator(
    operator: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    requires_grad: Sequence[bool] | None = None,
    *,
    backends: Sequence[str] | None = None,
    expected: Callable[..., Tensor] | None = None,
):
    """Compare the output and each gradient with those of the definition in float64.

    Args:
        operator: the function of the inputs, and of `backend`.
        inputs: tensors or None.
        requires_grad: which inputs get gradients, all if None.
        backends: what to compare, the operator's default if None.
        expected: the definition, backend 'reference' if None.
    """
    expected = expected or functools.partial(operator, backend='reference')
    with deterministic(False):  # sampling in PyTorch has no such backward on a GPU
        out, grads = run_with_grads(
            expected, inputs, requires_grad, dtype=torch.float64
        )
    for run in (
        [operator]
        if backends is None
        else [functools.partial(operator, backend=backend) for backend in backends]
    ):
        actual, actual_grads = run_with_grads(run, inputs, requires_grad)
        dtype = inputs[0].dtype
        assert actual.dtype == dtype
        assert_close('out', out, actual)
        for name, x, e, a in zip(
            names_of(operator, inputs), inputs, grads, actual_grads, strict=True
        ):
            assert (a is None) == (e is None), name
            if e is not None:
                assert a.dtype == x.dtype, name
                assert_close(f'grad of {name}', e, a, dtype)


def every_real_call(operator: str):
    """Parametrize over the calls at the shapes of real models."""
    return pytest.mark.parametrize('call', real_calls(operator), ids=str)


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


def check_nan_stays_in_its_image(operator: Callable, inputs: Sequence, index: int):
    """Check that a NaN in image 1 of three changes nothing of the other two."""
    inputs = list(inputs)
    clean, clean_grads = run_with_grads(operator, inputs)
    inputs[index] = inputs[index].clone()
    inputs[index][1, 5] = float('nan')
    out, grads = run_with_grads(operator, inputs)
    assert out[1, 5].isnan().all()
    for x, e in zip((out, *grads), (clean, *clean_grads), strict=True):
        if x is not None and x.shape[0] == 3 and x.dim() == out.dim():
            assert torch.equal(x[::2], e[::2])
