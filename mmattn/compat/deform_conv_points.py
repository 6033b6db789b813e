"""Which points mmcv's deformable convolutions count as inside the feature map.

mmcv's kernels for the CPU and for CUDA agree on it. torchvision's operator, which runs
in their place, differs.
"""

import torch
from torch import Tensor


def drop_outside(
    gradient: Tensor,
    offset: Tensor,
    image: torch.Size,
    kernel: torch.Size,
    geometry: tuple[int, ...],
):
    """Zero the gradients of offsets whose points mmcv does not count as inside.

    A point (y, x) is inside if it is strictly between -1 and the height and the width.
    torchvision gives points at exactly -1 the slope towards the inside. That is where
    each border pixel of a padded 3 x 3 convolution has points while its offsets are
    zero, as at initialization.

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
