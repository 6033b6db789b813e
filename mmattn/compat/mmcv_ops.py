"""mmcv's compiled operators, on torchvision and plain PyTorch, for CPU and CUDA.

The functions here have the names, the keyword arguments and the in-place outputs that
`mmcv.ops` expects of its extension `mmcv._ext`. `mmattn.compat` serves them under that
name when mmcv was installed without it. They were written from those conventions and
from the operators' published definitions; where the result can differ from the
compiled operator's, the function says so.

float16 and bfloat16 are storage formats: the arithmetic is float32. Boxes are
(x1, y1, x2, y2). Shapes: B batch, C channels, H W height and width of a feature map,
N boxes or rows, K classes.
"""

import numpy as np
import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision
from torch.nn import functional as F

from mmattn.compat.mmcv_deform import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
    ms_deform_attn_backward,
    ms_deform_attn_forward,
    widen,
)

__all__ = [
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'get_compiler_version',
    'get_compiling_cuda_version',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
    'nms',
    'nms_match',
    'roi_align_backward',
    'roi_align_forward',
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softmax_focal_loss_backward',
    'softmax_focal_loss_forward',
    'softnms',
]

BUILD_COMMAND = (
    'pip install --force-reinstall --no-deps --no-build-isolation '
    '--no-binary onedl-mmcv --no-cache-dir onedl-mmcv'
)
NO_ARGMAX = -1.0
"""What mmcv keeps as the position of a maximum over no sample."""


def __getattr__(name: str):
    """A stand-in for an operator that is not served; it raises when called."""
    if name.startswith('__'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def not_served(*args, **kwargs):
        raise NotImplementedError(
            f'mmcv was installed without its compiled operators, and {name!r} is not '
            'among those that mmattn provides in their place. Build mmcv with its '
            f'operators, in an environment that has torch: {BUILD_COMMAND} '
            '(with FORCE_CUDA=1 in front for a GPU)'
        )

    not_served.__name__ = not_served.__qualname__ = name
    return not_served


def get_compiler_version() -> str:
    return 'none: operators provided by mmattn'


def get_compiling_cuda_version() -> str:
    return 'not available'


def nms(boxes, scores, iou_threshold, offset):
    """Indices of the kept boxes, highest score first; equal scores keep their order.

    A pixel offset of 1 adds 1 to each width and height, in the areas and in the
    intersections alike, which is what moving x2 and y2 by 1 does.

    Args:
        boxes: shape (N, 4).
        scores: shape (N,).
        iou_threshold: a box goes when its overlap with a kept one is above this.
        offset: 0 or 1.
    """
    boxes = widen(boxes)
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    # torchvision compares in float64, where 0.6 is below the float32 overlap 3/5.
    threshold = torch.tensor(iou_threshold, dtype=boxes.dtype).item()
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), threshold)


def _box_table(boxes, scores, offset) -> np.ndarray:
    """Rows x1, y1, x2, y2, area, score of the boxes, shape (6, N), a copy."""
    boxes = widen(boxes.detach())
    size = boxes[:, 2:] - boxes[:, :2] + offset
    columns = *boxes.unbind(1), size.prod(1), scores.detach().to(boxes.dtype)
    return torch.stack(columns).cpu().numpy()


def _overlaps(first, others, offset) -> np.ndarray:
    """IoU of one column of a box table with others, shape (N,); NaN for areas of 0."""
    width = np.minimum(first[2], others[2]) - np.maximum(first[0], others[0]) + offset
    height = np.minimum(first[3], others[3]) - np.maximum(first[1], others[1]) + offset
    intersection = width.clip(min=0) * height.clip(min=0)
    with np.errstate(divide='ignore', invalid='ignore'):
        return intersection / (first[4] + others[4] - intersection)


def softnms(boxes, scores, dets, iou_threshold, sigma, min_score, method, offset):
    """Soft-NMS: boxes that overlap a better one lose score instead of going.

    The order of work is mmcv's, also where scores are equal: the best of the remaining
    boxes changes places with the first of them, and a box whose score falls below
    `min_score` gives its place to the last.

    Args:
        boxes: shape (N, 4), on the CPU.
        scores: shape (N,), on the CPU.
        dets: shape (N, 5); boxes and new scores are written to its first rows.
        iou_threshold: overlap from which methods 0 and 1 act.
        sigma: width of method 2.
        min_score: boxes below it go.
        method: factor on the score, 0 for 0 (as in NMS), 1 for 1 - IoU,
            2 for exp(-IoU^2 / sigma).
        offset: 0 or 1, added to widths and heights.

    Returns:
        indices of the boxes that remain, in the order of `dets`.
    """
    table = _box_table(boxes, scores, offset)
    indices = np.arange(table.shape[1])
    first = 0
    while first < indices.size:
        best = first + table[5, first:].argmax()
        table[:, [first, best]] = table[:, [best, first]]
        indices[[first, best]] = indices[[best, first]]
        others = table[:, first + 1 :]
        overlap = _overlaps(table[:, first], others, offset)
        if method == 2:
            others[5] *= np.exp(-(overlap**2) / sigma)
        else:
            factor = 0 if method == 0 else 1 - overlap
            others[5] *= np.where(overlap >= iou_threshold, factor, 1)
        first += 1
        stays = ~(others[5] < min_score)
        number = first + stays.sum()
        if number < indices.size:
            places = first + np.flatnonzero(~stays)
            places = places[places < number]
            fillers = first + np.flatnonzero(stays)[::-1][: places.size]
            table[:, places] = table[:, fillers]
            indices[places] = indices[fillers]
            table, indices = table[:, :number], indices[:number]
    dets[: indices.size] = torch.from_numpy(table[[0, 1, 2, 3, 5]].T)
    return torch.from_numpy(indices)


def nms_match(dets, iou_threshold) -> list[list[int]]:
    """Groups of boxes: each box that NMS keeps, then those it suppresses, by score.

    Unlike `nms`, an overlap of exactly the threshold suppresses.

    Args:
        dets: shape (N, 5), boxes and scores, on the CPU.
        iou_threshold: overlap from which a box joins a better one's group.
    """
    table = _box_table(dets[:, :4], dets[:, 4], offset=0)
    remaining = np.argsort(-table[5], kind='stable')
    groups = []
    while remaining.size:
        kept, others = remaining[0], remaining[1:]
        joins = _overlaps(table[:, kept], table[:, others], 0) >= iou_threshold
        groups.append([int(kept), *others[joins].tolist()])
        remaining = others[~joins]
    return groups


def _bilinear(y: torch.Tensor, x: torch.Tensor, height: int, width: int):
    """Flat positions and weights of the four pixels around each point, shape (4, ...).

    A point up to one pixel outside the map takes the border's value; further out, all
    its weights are 0.
    """
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.floor(), x.floor()
    dy, dx = y - top, x - left
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    positions = torch.stack(
        [
            top * width + left,
            top * width + right,
            bottom * width + left,
            bottom * width + right,
        ]
    ).long()
    weights = torch.stack([(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx])
    return positions, weights * inside


def _bin_samples(start, end, bins: int, sampling_ratio: int, aligned: bool):
    """Coordinates of the samples in each bin along one axis, shape (bins, samples)."""
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
    """Pools each box to `aligned_height` x `aligned_width` bins, written to `output`.

    Taking the maximum goes box by box in Python: no published configuration uses it.
    There, a box with no samples gives 0, where mmcv gives its starting value.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 5), image index and box.
        output: shape (N, C, aligned_height, aligned_width).
        argmax_y, argmax_x: as output, where the maxima are; not used for the average.
        spatial_scale: pixels of the feature map per pixel of the image.
        sampling_ratio: samples per bin and axis; 0 takes about one per pixel.
        pool_mode: 0 for the maximum of a bin's samples, 1 for their average.
        aligned: whether pixel centers are at half-integers.
    """
    features, rois = widen(input), rois.to(widen(input).dtype)
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
        positions, weights = _bilinear(y, x, H, W)
        image = features[int(rois[n, 0])].flatten(1)  # (C, H * W)
        values, best = (image[:, positions] * weights).sum(1).max(-1)
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
    """Writes the gradient of the feature map; see `roi_align_forward`."""
    B, C, H, W = grad_input.shape
    grad = widen(grad_output)
    rois = rois.to(grad.dtype)
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
    positions, weights = _bilinear(widen(argmax_y), widen(argmax_x), H, W)
    weights = weights * (argmax_y != NO_ARGMAX)
    planes = rois[:, 0].long()[:, None] * C + torch.arange(C, device=grad.device)
    positions = positions + planes[..., None, None] * (H * W)
    gradient = grad.new_zeros(grad_input.numel())
    gradient.index_add_(0, positions.flatten(), (weights * grad).flatten())
    grad_input.copy_(gradient.view_as(grad_input))


def _class_weight(weight, target):
    """Weight of each row's class, shape (N,); 1 where the target is no class.

    mmcv reads past the end of its weights for such a target.
    """
    if weight.numel() == 0:
        return torch.ones_like(target, dtype=torch.float32)
    is_class = (target >= 0) & (target < weight.numel())
    chosen = widen(weight)[target.clamp(0, weight.numel() - 1)]
    return torch.where(is_class, chosen, 1.0)


def sigmoid_focal_loss_forward(input, target, weight, output, gamma, alpha):
    """Writes the focal loss of K binary classifiers per row, not reduced.

    The logarithms are taken of the logits, so they stay exact where the probability
    rounds to 0 or 1; mmcv takes them of the rounded probability.

    Args:
        input: logits, shape (N, K).
        target: class of each row, shape (N,); any other number, such as K, is
            background.
        weight: weight of each class, shape (K,), or empty.
        output: shape (N, K), written.
        gamma: exponent of the modulating factor.
        alpha: weight of the positives; the negatives have 1 - alpha.
    """
    logits = widen(input)
    positive = target[:, None] == torch.arange(logits.size(1), device=target.device)
    signed = torch.where(positive, logits, -logits)
    balance = torch.where(positive, logits.new_tensor(alpha), 1 - alpha)
    loss = -balance * (-signed).sigmoid() ** gamma * F.logsigmoid(signed)
    output.copy_(loss * _class_weight(weight, target)[:, None])


def sigmoid_focal_loss_backward(input, target, weight, grad_input, gamma, alpha):
    """Writes the loss's derivative by each logit; see `sigmoid_focal_loss_forward`.

    With s the logit, negated for a negative, and p = sigmoid(s), it is
    balance * (1 - p)^gamma * (gamma p log(p) - (1 - p)) ds/dx.
    """
    logits = widen(input)
    positive = target[:, None] == torch.arange(logits.size(1), device=target.device)
    signed = torch.where(positive, logits, -logits)
    balance = torch.where(positive, logits.new_tensor(alpha), alpha - 1)
    wrong = (-signed).sigmoid()
    slope = gamma * signed.sigmoid() * F.logsigmoid(signed) - wrong
    gradient = balance * wrong**gamma * slope
    grad_input.copy_(gradient * _class_weight(weight, target)[:, None])


def _true_class_probability(probabilities, target):
    """Probability of each row's target, kept off 0, and which rows count, (N,)."""
    probability = widen(probabilities).gather(1, target.clamp(min=0)[:, None])[:, 0]
    return probability.clamp(min=torch.finfo(torch.float32).tiny), target >= 0


def softmax_focal_loss_forward(input, target, weight, output, gamma, alpha):
    """Writes the focal loss of one K-way classifier per row, not reduced.

    Args:
        input: probabilities, shape (N, K): mmcv applies the softmax.
        target: class of each row, shape (N,); a negative one gives a loss of 0.
        weight: weight of each class, shape (K,), or empty.
        output: shape (N,), written.
        gamma: exponent of the modulating factor.
        alpha: factor on every loss.
    """
    p, counts = _true_class_probability(input, target)
    loss = -alpha * (1 - p) ** gamma * p.log() * _class_weight(weight, target)
    output.copy_(torch.where(counts, loss, 0.0))


def softmax_focal_loss_backward(input, target, weight, buff, grad_input, gamma, alpha):
    """Writes the loss's derivative by each logit; see `softmax_focal_loss_forward`.

    Args:
        input: probabilities, shape (N, K).
        buff: shape (N,), written: p times the derivative by p, the probability of
            the target.
        grad_input: shape (N, K), written.
    """
    p, counts = _true_class_probability(input, target)
    slope = gamma * (1 - p) ** (gamma - 1) * p * p.log() - (1 - p) ** gamma
    slope = torch.where(counts, alpha * slope * _class_weight(weight, target), 0.0)
    buff.copy_(slope)
    own = target[:, None] == torch.arange(input.size(1), device=target.device)
    grad_input.copy_(slope[:, None] * (own.to(slope.dtype) - widen(input)))
