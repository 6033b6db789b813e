"""RoIAlign on the levels of a feature pyramid, equal to `SingleRoIExtractor`."""

from collections.abc import Sequence

import torch
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from torch import Tensor, nn
from torchvision.ops import roi_align

from ..errors import ExportError
from .nms import indices
from .parts import check_class


def check_extractor(extractor: nn.Module):
    """Raise an ExportError if a module pools regions in another way."""
    check_class(extractor, SingleRoIExtractor)
    for layer in extractor.roi_layers:
        if type(layer).__name__ != 'RoIAlign':
            raise ExportError(
                f'SingleRoIExtractor can be exported with RoIAlign, got '
                f'{type(layer).__name__}'
            )
        if layer.pool_mode != 'avg':
            raise ExportError(
                f'RoIAlign can be exported with `pool_mode="avg"`, got '
                f'{layer.pool_mode!r}'
            )


def pool(extractor: nn.Module, features: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """Return the features of each box, pooled on the level that fits its size.

    The maps of the neck are (B, C, H, W) and the boxes (B, P, 4); the result is
    (B * P, C, height, width).
    """
    B, P, _ = boxes.shape
    numbers = torch.arange(B, device=boxes.device)[:, None, None].expand(B, P, 1)
    regions = torch.cat([numbers.to(boxes), boxes], -1).flatten(0, 1)
    layers = list(zip(features, extractor.roi_layers, strict=False))
    if len(layers) == 1:
        return _align(*layers[0], regions)
    width, height = (regions[:, 3:] - regions[:, 1:3]).unbind(1)
    scale = (width * height).sqrt() / extractor.finest_scale + 1e-6
    # Logarithms of powers of two are not exact everywhere, so compare with the powers.
    level = sum((scale >= 2**i).long() for i in range(1, len(layers)))
    height, width = layers[0][1].output_size
    out = regions.new_zeros(B * P, features[0].shape[1], height, width)
    for number, layer in enumerate(layers):
        index = indices(level == number)
        out = out.index_put((index,), _align(*layer, regions[index]))
    return out


def _align(features: Tensor, layer: nn.Module, regions: Tensor) -> Tensor:
    """Return the features of a level in regions (N, 5) of image and box."""
    return roi_align(
        features,
        regions,
        layer.output_size,
        layer.spatial_scale,
        layer.sampling_ratio,
        layer.aligned,
    )
