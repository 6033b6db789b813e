"""Inputs of neighborhood attention for tests, benchmarks and reports."""

import torch

from ..testing import make_neighborhood_inputs, with_grad


def example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `neighborhood_attention`."""
    tensors = make_neighborhood_inputs(device=device, dtype=dtype)
    return with_grad(tensors, requires_grad), {}
