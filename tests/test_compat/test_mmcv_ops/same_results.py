"""Compare results and their gradients."""

import torch


def assert_same(output, expected, tensors, **tolerances):
    torch.testing.assert_close(output, expected, **tolerances)
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    actual, wanted = (
        torch.autograd.grad(each, tensors, direction.to(each.dtype))
        for each in (output, expected)
    )
    torch.testing.assert_close(actual, wanted, **tolerances)
