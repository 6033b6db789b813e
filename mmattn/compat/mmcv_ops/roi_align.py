"""RoIAlign, with the arguments of mmcv's operator.

Boxes are (x1, y1, x2, y2). Shapes: B batch, C channels, H W height and width of a
feature map, N boxes.
"""

import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision

from .deform import widen
from .samples import bilinear

NO_ARGMAX = -1.0
"""mmcv's position of the maximum of a bin without samples."""


def _finite(boxes: torch.Tensor) -> torch.Tensor:
    """Return the boxes, with 0 for NaN and infinity, which torchvision cannot read."""
    return boxes.nan_to_num(posinf=0, neginf=0)


def _bin_samples(start, end, bins: int, sampling_ratio: int, aligned: bool):
    """Return the samples of each bin along one axis, shape (bins, samples)."""
    size = end - start if aligned else (end - start).clamp(min=1)
    samples = (
        sampling_ratio if sampling_ratio > 0 else max(int((size / bins).ceil()), 0)
    )
    fractions = torch.arange(samples).to(size).add(0.5).div(max(samples, 1))
    steps = torch.arange(bins).to(size)[:, None] + fractions
    return start + steps * (size / bins)


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
    """Pool each box to `aligned_height` x `aligned_width` bins, written to `output`.

    The maximum is computed box by box in Python, because no published config uses it.
    A box without samples then gives 0, where mmcv gives its initial value.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 5), image index and box.
        output: shape (N, C, aligned_height, aligned_width).
        argmax_y, argmax_x: positions of the maxima, shaped as output; ignored for the
            average.
        spatial_scale: pixels of the feature map per pixel of the image.
        sampling_ratio: samples per bin and axis; 0 takes about one per pixel.
        pool_mode: 0 for the maximum of a bin's samples, 1 for their average.
        aligned: whether pixel centers are at half-integers.
    """
    features = widen(input)
    rois = _finite(rois.to(features.dtype))
    if pool_mode == 1:
        pooled = torch.ops.torchvision.roi_align(
            features,
            rois,
            spatial_scale,
            aligned_height,
            aligned_width,
            sampling_ratio,
            aligned,
        )
        output.copy_(pooled)
        return
    C, H, W = features.shape[1:]
    boxes = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    for n, (x1, y1, x2, y2) in enumerate(boxes):
        y = _bin_samples(y1, y2, aligned_height, sampling_ratio, aligned)
        x = _bin_samples(x1, x2, aligned_width, sampling_ratio, aligned)
        y, x = torch.broadcast_tensors(y[:, None, :, None], x[None, :, None, :])
        y, x = y.flatten(2), x.flatten(2)  # (aligned_height, aligned_width, samples)
        if y.size(2) == 0:
            output[n], argmax_y[n], argmax_x[n] = 0, NO_ARGMAX, NO_ARGMAX
            continue
        positions, weights = bilinear(y, x, H, W)
        image = features[int(rois[n, 0])].flatten(1)  # (C, H * W)
        values, best = (image[:, positions] * weights).sum(-1).max(-1)
        output[n] = values
        argmax_y[n] = y.expand(C, *y.shape).gather(3, best[..., None])[..., 0]
        argmax_x[n] = x.expand(C, *x.shape).gather(3, best[..., None])[..., 0]


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
    B, C, H, W = grad_input.shape
    grad = widen(grad_output)
    rois = _finite(rois.to(grad.dtype))
    if pool_mode == 1:
        gradient = torch.ops.torchvision._roi_align_backward(
            grad,
            rois,
            spatial_scale,
            aligned_height,
            aligned_width,
            B,
            C,
            H,
            W,
            sampling_ratio,
            aligned,
        )
        grad_input.copy_(gradient)
        return
    positions, weights = bilinear(widen(argmax_y), widen(argmax_x), H, W)
    weights = weights * (argmax_y != NO_ARGMAX)[..., None]
    planes = rois[:, 0].long()[:, None] * C + torch.arange(C, device=grad.device)
    positions = positions + planes[..., None, None, None] * (H * W)
    gradient = grad.new_zeros(grad_input.numel())
    gradient.index_add_(0, positions.flatten(), (weights * grad[..., None]).flatten())
    grad_input.copy_(gradient.view_as(grad_input))
