"""Offsets and borders of mmcv's deformable convolutions.

mmcv's kernels for the CPU and for CUDA agree on both. torchvision's operator, which
runs in their place, differs in both.
"""

import torch
from torch import Tensor

from mmattn.errors import UserError


def first_elements(name: str, maps: Tensor, size: torch.Size) -> Tensor:
    """Return the offsets or masks that mmcv reads from maps larger than the output.

    mmcv indexes the elements of an image with the height and width of the output. So it
    reads the first elements of a larger map, row by row, as a map of the output's size.
    This is not a crop: rows change their width, and channels move. mmdet's DyHead and
    GLIP are trained this way.

    Args:
        name: the argument's name, for messages.
        maps: shape (B, C, H, W). Strides do not matter, unlike in mmcv.
        size: height and width of the output.

    Returns:
        Shape (B, C, *size). It is `maps` itself if that has the size.

    Raises:
        ValueError: the maps are smaller than the output; mmcv reads past their end.
    """
    if maps.dim() != 4 or maps.shape[2:] == size:
        return maps
    count = size.numel()
    if maps.shape[2:].numel() < count:
        raise UserError(
            f'{name} must have at least the {count} elements a channel of an output '
            f'of {tuple(size)}, got shape {tuple(maps.shape)}'
        )
    channels = maps.shape[1]
    return maps.flatten(1)[:, : channels * count].unflatten(1, (channels, *size))


def write_first_elements(buffer: Tensor, gradient: Tensor):
    """Write the gradient of `first_elements` into a buffer of the shape of its maps."""
    if buffer.shape == gradient.shape:
        buffer.copy_(gradient)
        return
    gradient = gradient.flatten(1)
    whole = gradient.new_zeros(buffer.shape).flatten(1)
    whole[:, : gradient.shape[1]] = gradient
    buffer.copy_(whole.view(buffer.shape))


def drop_outside(
    gradient: Tensor,
    offset: Tensor,
    image: torch.Size,
    kernel: torch.Size,
    geometry: tuple[int, ...],
):
    """Zero the gradients of offsets whose points mmcv counts as outside.

    A point (y, x) is inside if it is strictly between -1 and the height and the width.
    torchvision gives points at exactly -1 the slope towards the inside. Border pixels
    of a padded 3 x 3 convolution have such points while the offsets are zero, as they
    are at initialization.

    Args:
        gradient: shape (B, 2 * groups * kernel points, H', W'), changed in place.
        offset: as the gradient, in the dtype that the points were computed in.
        image: height and width of the feature map.
        kernel: height and width of the kernel.
        geometry: strides, paddings and dilations, each (y, x), and the groups.
    """
    groups = geometry[7]
    is_inside = True
    offsets = offset.unflatten(1, (groups, *kernel, 2)).unbind(4)
    for axis, delta in enumerate(offsets):  # (B, groups, kH, kW, H', W')
        stride, padding, dilation = geometry[axis:6:2]
        taps = torch.arange(kernel[axis], device=offset.device) * dilation
        starts = torch.arange(delta.shape[axis - 2], device=offset.device) * stride
        places = taps[:, None] + (starts - padding)  # integers: one rounding, as there
        shape = [1, 1, 1, 1]
        shape[axis], shape[axis + 2] = places.shape
        place = delta + places.view(shape)
        is_inside = is_inside & (place > -1) & (place < image[axis])
    points = gradient.unflatten(1, (groups, *kernel, 2))
    points.masked_fill_(~is_inside.unsqueeze(4), 0)
