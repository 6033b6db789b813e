"""Backbones of ours in torchvision's detectors."""

from collections import OrderedDict

from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import (
    ExtraFPNBlock,
    FeaturePyramidNetwork,
    LastLevelMaxPool,
)

from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone

__all__ = ['torchvision_fpn']


class BackboneWithFPN(nn.Module):
    """Backbone and feature pyramid, as torchvision's detectors take them.

    Attributes:
        out_channels: channels of each returned map.

    Forward:
        Takes images (B, C, H, W) and returns a dict of maps: '0', '1' and so on, then
        the maps of the extra block, such as 'pool'.
    """

    def __init__(
        self, backbone: BaseBackbone, out_channels: int, extra_blocks: ExtraFPNBlock
    ):
        super().__init__()
        self.body = backbone
        self.fpn = FeaturePyramidNetwork(
            list(backbone.out_channels), out_channels, extra_blocks
        )
        self.out_channels = out_channels

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.body(x)
        return self.fpn(OrderedDict((str(i), x) for i, x in enumerate(maps)))


def torchvision_fpn(
    backbone: BaseBackbone,
    out_channels: int = 256,
    extra_blocks: ExtraFPNBlock | None = None,
) -> BackboneWithFPN:
    """Put a feature pyramid on a backbone, for torchvision's detectors.

    Args:
        backbone: returns maps of several strides, such as `mmattn.IViT('tiny')`.
        out_channels: channels of the pyramid.
        extra_blocks: makes further maps; None adds one of half the size, as
            torchvision's Faster and Mask R-CNN expect.

    Returns:
        A module to pass as `backbone`, with `out_channels`.

    Raises:
        ValueError: the backbone returns fewer than two maps, or maps of one stride.

    Example:
        >>> import mmattn
        >>> from torchvision.models.detection import MaskRCNN
        >>> backbone = mmattn.torchvision_fpn(mmattn.IViT('tiny'))
        >>> detector = MaskRCNN(backbone, num_classes=2)
    """
    strides = backbone.strides
    if backbone.out_type != 'featmap' or len(set(strides)) < 2:
        raise UserError(
            'torchvision_fpn: the backbone must return maps of several strides; '
            f'{type(backbone).__name__} with out_indices {backbone.out_indices} and '
            f'out_type {backbone.out_type!r} has the strides {strides}'
        )
    return BackboneWithFPN(backbone, out_channels, extra_blocks or LastLevelMaxPool())
