"""Cross-layer similarity of attention maps.

"MaiT: Leverage Attention Masks for More Efficient Image Transformers",
https://arxiv.org/abs/2207.03006, defines it in equation 4 and shows it in Figures 4 to
6, after DeepViT (Zhou et al., https://arxiv.org/abs/2103.11886).
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError

from .attention_maps import AttentionMap, attention_maps


def map_similarity(maps: Sequence[Tensor]) -> Tensor:
    """Return the cosine of the same row in two layers' maps, averaged over rows.

    The paper prints the norm of layer i twice in the denominator. Its text calls the
    result a cosine, and DeepViT divides by the norms of both layers.

    Args:
        maps: one map for each layer, shape (M, N, N).

    Returns:
        Shape (L, L, M): symmetric, in [0, 1] for maps after a softmax.
    """
    rows = torch.stack([F.normalize(weights, dim=-1) for weights in maps])
    return torch.einsum('imtn,jmtn->ijm', rows, rows) / rows.shape[-2]


def layer_similarity(backbone: nn.Module, images: Iterable[Tensor]) -> Tensor:
    """Return the similarity of each two layers' maps by head, averaged over images.

    Args:
        backbone, images: as for `attention_locality`.

    Returns:
        Shape (L, L, M), layers in the order of their calls.

    Raises:
        ValueError: layers differ in tokens or heads, or there is no image.
    """
    similarities = []
    for image in images:
        maps = attention_maps(backbone, image[None])
        _check_alike(maps)
        similarities.append(map_similarity([found.weights for found in maps]))
    if not similarities:
        raise UserError('`images` must hold at least one image')
    return torch.stack(similarities).mean(0)


def similarity_among(similarity: Tensor, layers: Sequence[int]) -> Tensor:
    """Average a similarity (L, L, M) over pairs of different layers, shape (M,).

    The paper's "last 8 layers" are `layers=range(L - 8, L)`.
    """
    index = torch.as_tensor(list(layers))
    if len(index) < 2:
        raise UserError(f'`layers` must be two or more, got {list(layers)}')
    first, second = torch.combinations(index).unbind(1)
    return similarity[first, second].mean(0)


def _check_alike(maps: Sequence[AttentionMap]):
    first = maps[0]
    for found in maps:
        if found.weights.shape != first.weights.shape:
            sizes = [
                '{}: {} heads, {} tokens'.format(m.layer, *m.weights.shape[:2])
                for m in (first, found)
            ]
            raise UserError(
                f'layers that are compared must be alike, got {"; ".join(sizes)}'
            )
