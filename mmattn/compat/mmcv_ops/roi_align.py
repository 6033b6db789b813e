"""RoIAlign, with the arguments of mmcv's operator.

Boxes are (x1, y1, x2, y2). Shapes: B batch, C channels, H W height and width of a
feature map, N boxes.
"""

import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision

from . import operator_of, widen

AVERAGE = 1  # of the pool modes; 0 is the maximum


def _finite(boxes: torch.Tensor) -> torch.Tensor:
    """Return the boxes, with 0 for NaN and infinity, which torchvision cannot read."""
    return boxes.nan_to_num(posinf=0, neginf=0)


def roi_align_forward(
    input,
    rois,
    output,
    argmax_y,
    argmax_x,
    aligned_height,
    aligned_width,
    spatial_scale,
    sampling_ratio,
    pool_mode,
    aligned,
):
    """Average the samples of `aligned_height` x `aligned_width` bins of each box.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 5), image index and box.
        output: shape (N, C, aligned_height, aligned_width), written.
        argmax_y, argmax_x: of the maximum; ignored.
        spatial_scale: pixels of the feature map per pixel of the image.
        sampling_ratio: samples per bin and axis; 0 takes about one per pixel.
        pool_mode: 1. The maximum, 0, is not provided; no published config uses it.
        aligned: whether pixel centers are at half-integers.
    """
    if pool_mode != AVERAGE:
        operator_of("roi_align with pool_mode='max'")()
    features = widen(input)
    pooled = torch.ops.torchvision.roi_align(
        features,
        _finite(rois.to(features.dtype)),
        spatial_scale,
        aligned_height,
        aligned_width,
        sampling_ratio,
        aligned,
    )
    output.copy_(pooled)


def roi_align_backward(
    grad_output,
    rois,
    argmax_y,
    argmax_x,
    grad_input,
    aligned_height,
    aligned_width,
    spatial_scale,
    sampling_ratio,
    pool_mode,
    aligned,
):
    """Write the gradient of the feature map; see `roi_align_forward`."""
    grad = widen(grad_output)
    gradient = torch.ops.torchvision._roi_align_backward(
        grad,
        _finite(rois.to(grad.dtype)),
        spatial_scale,
        aligned_height,
        aligned_width,
        *grad_input.shape,
        sampling_ratio,
        aligned,
    )
    grad_input.copy_(gradient)
