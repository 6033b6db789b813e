"""Measure a network without looking at its accuracy: its heads, its ranks, its reach.

These quantities need no training. A claim about a network as drawn is decided by
drawing it several times.
"""

from statistics import mean

import torch
from torch import Tensor, nn

from mmattn.analysis import attention_maps, count
from mmattn.analysis import head_diversity as head_diversities


def diversity(backbone: nn.Module, images: Tensor) -> dict[str, float]:
    """Return variances and similarity of the heads, averaged over layers and images."""
    layers = head_diversities(backbone, images)
    return {
        name: mean(getattr(layer, name) for layer in layers)
        for name in ('head_variance', 'map_variance', 'similarity')
    }


def effective_rank(weights: Tensor) -> Tensor:
    """Return the exponential of the entropy of a matrix's singular values.

    The values are divided by their sum: Roy and Vetterli, "The effective rank: a
    measure of effective dimensionality", EUSIPCO 2007.

    Args:
        weights: matrices, shape (..., N, N).

    Returns:
        Shape (...), from 1 to N.
    """
    values = torch.linalg.svdvals(weights)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def rank(backbone: nn.Module, images: Tensor) -> dict[str, float]:
    """Return the effective rank of the attention maps, averaged over all of them."""
    found = [
        effective_rank(layer.weights.double()).mean().item()
        for image in images
        for layer in attention_maps(backbone, image[None], effective=True)
    ]
    return dict(rank=mean(found))


def reach(backbone: nn.Module, images: Tensor) -> dict[str, float]:
    """Return how far the pixels lie that the token in the middle takes from others.

    It is the root of their mean squared distance from the token's middle, in sides of
    the image. Pixels are weighted by squared gradients, as Luo et al. do in
    "Understanding the Effective Receptive Field in Deep Convolutional Neural Networks",
    https://arxiv.org/abs/1701.04128. The token's own patch does not count.
    """
    x = images.clone().requires_grad_()
    maps = backbone(x)[-1]  # (B, C, h, w)
    middle = [side // 2 for side in maps.shape[-2:]]
    token = maps[:, :, *middle]
    weights = torch.randn(token.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((token * weights).sum(), x)
    energy = gradient.square().sum((0, 1)).double()
    y, x = (
        ((torch.arange(pixels) + 0.5) / pixels - (index + 0.5) / cells) * cells
        for pixels, index, cells in zip(
            energy.shape, middle, maps.shape[-2:], strict=True
        )
    )  # distance from the token's middle, in patches
    outside = torch.maximum(y.abs()[:, None], x.abs()) > 0.5
    energy = energy * outside
    squared = (y / maps.shape[-2]).square()[:, None] + (x / maps.shape[-1]).square()
    return dict(reach=((energy * squared).sum() / energy.sum()).sqrt().item())


def growth(backbone: nn.Module, images: Tensor) -> dict[str, float]:
    """Return the factor of the FLOPs from images of four sides to images of eight.

    The number of tokens is four times as large, so 4 is linear and 16 quadratic.
    """
    side = images.shape[-1]
    small, large = (count(backbone, (1, n * side, n * side)).flops for n in (4, 8))
    return dict(growth=large / small)


MEASURES = dict(diversity=diversity, rank=rank, reach=reach, growth=growth)
