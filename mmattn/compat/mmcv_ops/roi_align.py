"""RoIAlign, with the arguments of mmcv's operator.

Boxes are (x1, y1, x2, y2). Shapes: B batch, C channels, H W height and width of a
feature map, N boxes.
"""

from operator import itemgetter

import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision

from . import operator_of, widen

AVERAGE = 1  # of the pool modes; 0 is the maximum
BINS = itemgetter('spatial_scale', 'aligned_height', 'aligned_width')
SAMPLES = itemgetter('sampling_ratio', 'aligned')


def _finite(boxes: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return boxes as torchvision reads them, with 0 for NaN and infinity."""
    return boxes.to(features.dtype).nan_to_num(posinf=0, neginf=0)


def roi_align_forward(input, rois, output, argmax_y, argmax_x, **settings):
    """Average the samples of `aligned_height` x `aligned_width` bins of each box.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 5), image index and box.
        output: shape (N, C, aligned_height, aligned_width), written.
        argmax_y, argmax_x: of the maximum; ignored.
        settings: of the bins; `spatial_scale`, pixels of the feature map per pixel of
            the image; `sampling_ratio`, samples per bin and axis, where 0 takes about
            one per pixel; `pool_mode`, where the maximum, 0, is not provided, since no
            published config uses it; `aligned`, whether pixel centers are at
            half-integers.
    """
    if settings['pool_mode'] != AVERAGE:
        operator_of("roi_align with pool_mode='max'")()
    features = widen(input)
    boxes = _finite(rois, features)
    align = torch.ops.torchvision.roi_align
    output.copy_(align(features, boxes, *BINS(settings), *SAMPLES(settings)))


def roi_align_backward(grad_output, rois, argmax_y, argmax_x, grad_input, **settings):
    """Write the gradient of the feature map; see `roi_align_forward`."""
    grad = widen(grad_output)
    gradient = torch.ops.torchvision._roi_align_backward(
        grad,
        _finite(rois, grad),
        *BINS(settings),
        *grad_input.shape,
        *SAMPLES(settings),
    )
    grad_input.copy_(gradient)
