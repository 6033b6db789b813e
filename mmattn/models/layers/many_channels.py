"""Normalize images of any number of channels."""

from collections.abc import Sequence

import torch

from mmattn.errors import UserError


class ManyChannels:
    """Give a data preprocessor of mmengine a mean for each of any number of channels.

    mmengine's take one or three. List it before the class that it extends.

    Args:
        mean: of each channel.
        std: of each channel.
        **kwargs: of the data preprocessor; `bgr_to_rgb` and `rgb_to_bgr` require three
            channels.

    Raises:
        ValueError: `mean` and `std` differ in length, or channels are to be swapped.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], **kwargs):
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
