"""Diversity of the heads of a layer: the variance and similarity of their maps.

Figures 6(b) and 7 of "Interactive Multi-Head Self-Attention with Linear Complexity",
https://arxiv.org/abs/2402.17507, show them. The paper has no equations for them, so
there are two variances here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention_calls import AttentionCall, watch_images
from .attention_maps import whole_map


@dataclass(frozen=True)
class HeadDiversity:
    """The diversity of one layer's heads, averaged over images.

    Attributes:
        layer: name of the module that called the operator.
        num_heads: M.
        head_variance: variance between heads, see `head_variance`.
        map_variance: mean of `map_variance` over the heads.
        similarity: mean of `head_similarity` over pairs of different heads; NaN for a
            single head.
    """

    layer: str
    num_heads: int
    head_variance: float
    map_variance: float
    similarity: float


def head_variance(weights: Tensor) -> Tensor:
    """Return the variance of each entry between heads (M, ...), averaged over entries.

    This is our reading of "variance in each head dimension". It is 0 for a single head
    and for heads that are all alike.
    """
    return weights.var(0, correction=0).mean()


def map_variance(weights: Tensor) -> Tensor:
    """Return the variance (M,) of the entries of each head's map, of maps (M, ...).

    It is 0 for uniform attention and grows as attention concentrates on few tokens.
    """
    return weights.flatten(1).var(1, correction=0)


def head_similarity(weights: Tensor) -> Tensor:
    """Return the cosines (M, M) between the whole maps of each two heads (M, ...)."""
    maps = F.normalize(weights.flatten(1), dim=1)
    return maps @ maps.T


def head_diversity(
    backbone: nn.Module, images: Iterable[Tensor]
) -> list[HeadDiversity]:
    """Measure how much the heads of each attention differ, averaged over images.

    Attention that is no softmax is measured by its effective map, as
    `attention_maps(backbone, image, effective=True)` returns it. For landmark attention
    that is A_Q A_K. Statistics are in float64.

    Args:
        backbone: runs in its current mode, so call `eval()` before.
        images: normalized images, shape (B, 3, H, W), or a sequence of (3, H, W) of
            several sizes. They run one by one.

    Returns:
        Layers in the order of their calls.

    Raises:
        ValueError: there is no image, a layer has more than 4096 tokens, or no
            attention can be read.
    """
    found = []
    for layer in watch_images(backbone, images, _measure):
        name, num_heads, _ = layer[0]
        means = torch.stack([values for *_, values in layer]).mean(0)
        found.append(HeadDiversity(name, num_heads, *means.tolist()))
    return found


def _measure(call: AttentionCall) -> tuple[str, int, Tensor]:
    """Return the name and heads of a layer, and its two variances and similarity."""
    weights = whole_map(call).weights.double()
    num_heads = len(weights)
    first, second = torch.triu_indices(num_heads, num_heads, 1)
    values = (
        head_variance(weights),
        map_variance(weights).mean(),
        head_similarity(weights)[first, second].mean(),  # NaN if there is no pair
    )
    return call.caller.name, num_heads, torch.stack(values)
