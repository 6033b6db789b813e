"""Kernels of landmark attention, against derivatives of the operator."""

import pytest
import torch

from mmattn.analysis.kernel_rows import landmark_kernels
from mmattn.ops import landmark_attention
from tools.benchmark.tolerances import assert_close


@pytest.mark.parametrize('mixed', [None, 3, 4], ids=['none', 'as-printed', 'wider'])
def test_landmark_kernels_are_gradients_by_the_values(mixed):
    """The operator is linear in the values, and a head's output is of its own ones."""
    N, L, M, D = 15, 4, 3, 5
    q, k = torch.randn(2, 1, N, M, D, dtype=torch.float64).unbind()
    landmarks = torch.randn(2, 1, L, M, D, dtype=torch.float64).unbind()
    weights = [None] * 4
    if mixed:
        shapes = 2 * [(mixed, M), (M, mixed)]
        weights = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    value = torch.zeros_like(q)
    jacobian = torch.autograd.functional.jacobian(
        lambda v: landmark_attention(q, k, v, *landmarks, *weights)[0, ..., 0], value
    )
    expected = jacobian[:, :, 0, ..., 0].diagonal(dim1=1, dim2=3)  # (N, N, M)
    rows = [0, 7, 14]
    kernels = landmark_kernels(q, k, *landmarks, *weights, rows=rows)
    assert_close('kernels', expected[rows].transpose(1, 2), kernels)
