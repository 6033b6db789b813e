"""The normalization of q and k."""

from torch import Tensor

from .reference import EPS


def normalizer(x: Tensor, dim: int) -> Tensor:
    """Return the factor of the L2 normalization."""
    return x.square().sum(dim, keepdim=True).add_(EPS).rsqrt_()


def unnormalized(dy: Tensor, y: Tensor, scale: Tensor, dim: int) -> Tensor:
    """Return the gradient of x, given that of its normalized `y = x * scale`."""
    return (dy - y * (y * dy).sum(dim, keepdim=True)).mul_(scale)
