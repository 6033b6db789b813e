"""Inputs of landmark attention for tests, benchmarks and reports."""

import torch

from ..testing import make_landmark_inputs, with_grad


def example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `landmark_attention`."""
    tensors = make_landmark_inputs(E=4, device=device, dtype=dtype)
    return with_grad(tensors, requires_grad), {}
