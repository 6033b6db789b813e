"""Inputs of masked attention for tests, benchmarks and reports."""

import torch

from ..testing import make_masked_inputs, with_grad


def example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `masked_attention`."""
    grid, num_special = (7, 5), 1
    tensors = make_masked_inputs(
        grid=grid, num_special=num_special, bias=True, device=device, dtype=dtype
    )
    q, k, v, bias, _ = with_grad(tensors, requires_grad)
    return (q, k, v, grid), dict(num_special=num_special, bias=bias)
