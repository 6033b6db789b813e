"""Normalize images of any number of channels for detectors."""

import torch
from mmdet.models import DetDataPreprocessor as MMDetDataPreprocessor

from mmattn.errors import UserError
from mmattn.registry import MODELS


@MODELS.register_module()
class DetDataPreprocessor(MMDetDataPreprocessor):
    """Prepare batches as mmdet does, with a mean for each of any number of channels.

    mmdet's takes one or three. Those of mmseg and mmpretrain take any.

    Args:
        mean: of each channel.
        std: of each channel.
        **kwargs: of mmdet's DetDataPreprocessor; `bgr_to_rgb` and `rgb_to_bgr` require
            three channels.
    """

    def __init__(self, mean, std, **kwargs):
        if len(mean) != len(std):
            raise UserError(
                f'`mean` and `std` must be as long, got {len(mean)} and {len(std)}'
            )
        swaps = kwargs.get('bgr_to_rgb') or kwargs.get('rgb_to_bgr')
        if swaps and len(mean) != 3:
            raise UserError(
                f'bgr_to_rgb and rgb_to_bgr require three channels, got {len(mean)}'
            )
        super().__init__(mean=mean[:1], std=std[:1], **kwargs)
        for name, values in (('mean', mean), ('std', std)):
            values = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, values, persistent=False)
