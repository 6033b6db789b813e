"""Inputs of multi-scale deformable attention for tests, benchmarks and reports."""

import torch

from ..testing import make_ms_deform_inputs, with_grad


def example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `ms_deform_attn`."""
    shapes = [(7, 5), (4, 3)]
    tensors = make_ms_deform_inputs(shapes=shapes, device=device, dtype=dtype)
    value, locations, weights, _ = with_grad(tensors, requires_grad)
    return (value, shapes, locations, weights), {}


def fused_example_inputs(device='cpu', dtype=torch.float32, requires_grad=False):
    """Return `(args, kwargs)` of a small call of `fused_ms_deform_attn`."""
    shapes = [(7, 5), (4, 3)]
    tensors = make_ms_deform_inputs(
        shapes=shapes, fused=True, device=device, dtype=dtype
    )
    value, offsets, logits, reference = with_grad(tensors, requires_grad)
    return (value, shapes, reference, offsets, logits), {}
