"""Tolerances of operators, and runs with gradients, for tests and benchmarks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class Tolerance(NamedTuple):
    """Bound an error, relative to the expected tensor's RMS and largest value."""

    rms: float
    maximum: float
    absolute: float  # added to both: rounding noise where the exact answer is 0


TOLERANCES = {
    torch.float64: Tolerance(1e-12, 1e-11, 1e-13),
    torch.float32: Tolerance(1e-5, 5e-5, 2e-6),
    torch.float16: Tolerance(1e-3, 3e-3, 2e-4),
    torch.bfloat16: Tolerance(6e-3, 2e-2, 1e-3),
}


def assert_close(
    name: str, expected: Tensor, actual: Tensor, dtype: torch.dtype | None = None
):
    """Assert that `actual` has the shape of `expected`, is finite and close to it.

    Args:
        name: name of the quantity, for the message.
        expected: expected tensor, of any dtype; both are compared in float64.
        actual: the tensor under test.
        dtype: row of `TOLERANCES` to use; None for actual's dtype. Give the dtype of
            the operator's inputs where a result of higher precision depends on them.
    """
    assert actual.shape == expected.shape, f'{name}: {actual.shape}, {expected.shape}'
    tolerance = TOLERANCES[dtype or actual.dtype]
    assert actual.detach().isfinite().all(), f'{name}: not finite'
    for kind, error, allowed in _errors(expected, actual, tolerance):
        assert error <= allowed, f'{name}: {kind} {error:.2e} > {allowed:.2e}'


def error_in_tolerances(
    expected: Tensor, actual: Tensor, dtype: torch.dtype | None = None
) -> float:
    """Return the error over what `assert_close` allows.

    It is infinite where the shapes differ or a number is not finite.
    """
    if actual.shape != expected.shape or not actual.detach().isfinite().all():
        return float('inf')
    tolerance = TOLERANCES[dtype or actual.dtype]
    errors = _errors(expected, actual, tolerance)
    return max((error / allowed for _, error, allowed in errors), default=0.0)


def _errors(expected: Tensor, actual: Tensor, tolerance: Tolerance) -> list[tuple]:
    """Return name, error and allowed error, for the RMS and for the largest error."""
    if actual.numel() == 0:
        return []
    expected = expected.detach().double()
    error = actual.detach().to(expected) - expected
    rms, rms_error = (x.square().mean().sqrt().item() for x in (expected, error))
    high, high_error = (x.abs().max().item() for x in (expected, error))
    return [
        ('RMS error', rms_error, tolerance.rms * rms + tolerance.absolute),
        ('error', high_error, tolerance.maximum * high + tolerance.absolute),
    ]


@contextmanager
def deterministic(mode: bool = True) -> Iterator[None]:
    """Set `torch.use_deterministic_algorithms` for a while."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def run_with_grads(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    requires_grad: Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Return `function(*inputs)` and its gradients for a fixed random cotangent.

    Args:
        function: takes the inputs by position and returns one tensor.
        inputs: tensors or None; they are not changed.
        requires_grad: which inputs get gradients; None for all of them.
        dtype: dtype that inputs are cast to first; None to keep theirs.
    """
    wanted, storage = requires_grad or [True] * len(inputs), inputs[0].dtype
    inputs = [
        None if x is None else x.detach().to(dtype or x.dtype).requires_grad_(want)
        for x, want in zip(inputs, wanted, strict=True)
    ]
    out = function(*inputs)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    cotangent = cotangent.to(storage).to(out)  # one rounding, whatever dtype computes
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    grads = iter(torch.autograd.grad(out, leaves, cotangent))
    return out.detach(), [
        next(grads) if x is not None and x.requires_grad else None for x in inputs
    ]
