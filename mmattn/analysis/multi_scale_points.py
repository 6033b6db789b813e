"""Read where multi-scale deformable attention samples, and how much is attended.

The figures of "Deformable DETR: Deformable Transformers for End-to-End Object
Detection" (https://arxiv.org/abs/2010.04159, appendix A.6) show these points.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmattn.ops.ms_deform_attn.reference import sampling_locations

from .one_image import check_place, read_layers


@dataclass(frozen=True)
class MultiScalePoints:
    """The points of one query in one layer; places are (y, x) in the image, in pixels.

    Attributes:
        layer: name of the module.
        points: where each of M heads samples P points on each of L maps, shape
            (M, L, P, 2). Points outside the image sample zeros.
        weights: the attention to each point, shape (M, L, P). A head's sum up to 1.
        sizes: height and width of each map.
        query: the query's reference point, or the middle of its reference box.
    """

    layer: str
    points: Tensor
    weights: Tensor
    sizes: tuple[tuple[int, int], ...]
    query: tuple[float, float]


@torch.no_grad()
def multi_scale_points(
    model: nn.Module,
    run: Callable[[], object],
    image_size: Sequence[int],
    place: tuple[float, float],
) -> list[MultiScalePoints]:
    """Run a model and return the points of each `MSDeformAttention`, in order.

    Where the queries are the pixels of all maps, as in an encoder, the query is the
    pixel of the finest map in which the place lies. Elsewhere, as in a decoder, it is
    the query whose reference is nearest to the place.

    Args:
        model: a detector, a neck or an encoder, in evaluation mode.
        run: runs it on one image.
        image_size: height and width of the image with its padding.
        place: (y, x) in the image, in pixels.

    Raises:
        ValueError: the place is outside the image, or the model has no such layer.
    """
    check_place('place', place, image_size)
    from mmattn.models.layers import MSDeformAttention

    return read_layers(
        model,
        MSDeformAttention,
        'DeformableDETR and MSDeformAttnNeck',
        run,
        lambda *call: _points(*call, image_size, place),
    )


def _points(
    name: str,
    layer: nn.Module,
    args: tuple,
    image_size: Sequence[int],
    place: tuple[float, float],
) -> MultiScalePoints:
    """Return the points of a layer, given the arguments of its `forward`."""
    queries, value, sizes, references = args[:4]
    sizes = tuple((int(height), int(width)) for height, width in sizes)
    size = references.new_tensor([image_size[1], image_size[0]])
    # Levels may have references of their own; the first level's locate a query.
    centers = references[0, :, 0, :2] * size
    target = centers.new_tensor(place).flip(0)
    if queries.shape[1] == value.shape[1]:
        index = _pixel(sizes, image_size, place)
    else:
        index = int((centers - target).square().sum(-1).argmin())
    query = queries[:1, index, None]  # (1, 1, C)
    M, L, P = layer.num_heads, layer.num_levels, layer.num_points
    offsets = layer.sampling_offsets(query).view(1, 1, M, L, P, 2)
    around = references[:1, index, None].to(offsets.dtype)
    flat = [side for pair in sizes for side in pair]
    places = sampling_locations(offsets, around, flat)[0, 0] * size
    weights = layer.attention_weights(query).view(M, -1).softmax(-1)
    return MultiScalePoints(
        name,
        places.flip(-1).float(),
        weights.view(M, L, P).float(),
        sizes,
        tuple(centers[index].flip(0).tolist()),
    )


def _pixel(
    sizes: Sequence[tuple[int, int]],
    image_size: Sequence[int],
    place: tuple[float, float],
) -> int:
    """Return the index of the finest map's pixel among the pixels of all maps."""
    counts = [height * width for height, width in sizes]
    level = counts.index(max(counts))
    row, column = (
        int(at * cells / side)
        for at, cells, side in zip(place, sizes[level], image_size, strict=True)
    )
    return sum(counts[:level]) + row * sizes[level][1] + column
