"""Random values, and comparisons of functions with their gradients."""

import torch
from torch import nn

from tools.benchmark.tolerances import assert_close, run_with_grads


def randn(*shape, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def randomize(module, std=1.0):
    """Draw all parameters, so that none is zero, and return the module."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def out_and_gradients(module, function, x):
    """Return an output, and the gradients of its random projection by name."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = function(x)
    (out * randn(*out.shape, seed=2)).sum().backward()
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return out, gradients | {'x': x.grad}


def assert_same(expected, actual, tensors, dtype=None, exact=torch.float64):
    """Compare a function with one that runs in `exact`: the output, each gradient.

    Return the output and the gradients of the former.
    """
    want, want_grads = run_with_grads(expected, tensors, dtype=exact)
    out, grads = run_with_grads(actual, tensors)
    assert_close('out', want, out, dtype)
    for i, pair in enumerate(zip(want_grads, grads, strict=True)):
        assert_close(f'grad {i}', *pair, dtype)
    return out, grads
