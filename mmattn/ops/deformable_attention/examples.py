"""Inputs of the deformable attentions for tests, benchmarks and reports."""

import torch

from ..testing import make_deformable_v2_inputs, make_ms_deform_inputs, with_grad


def example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `deformable_attention`."""
    grid = (7, 5)
    value, *points, _ = make_ms_deform_inputs(shapes=[grid], device=device, dtype=dtype)
    tensors = value, *(x.squeeze(3) for x in points)  # the only level
    value, locations, weights = with_grad(tensors, requires_grad)
    return (value, grid, locations, weights), {}


def v2_example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `deformable_attention_v2`."""
    grid = (7, 5)
    tensors = make_deformable_v2_inputs(grid=grid, device=device, dtype=dtype)
    q, k, v, positions, table = with_grad(tensors, requires_grad)
    return (q, k, v, grid, positions, table), {}
