"""torchvision's deformable convolution and RoIAlign, on `mmattn.ops.ms_deform_attn`.

Both are sums of bilinear samples with weights, which that operator computes. On a CPU,
torchvision samples one value at a time, and adds gradients without vectors. On a GPU it
has kernels of its own, which `mmattn.accelerate` leaves in place.
"""

import math

import torch
from torch import Tensor

from mmattn.ops import ms_deform_attn

HEAD_DIMS = 32  # channels that share their samples' places, as in Deformable DETR


def deform_conv2d(
    x: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    mask: Tensor | None,
) -> Tensor:
    """Compute `torchvision.ops.deform_conv2d`.

    Args:
        x: shape (B, C, H, W).
        offset: (y, x) of each of the K pixels of the kernel, in each of G groups of
            channels, shape (B, 2 G K, h, w).
        weight: shape (O, C / groups, k_y, k_x), where k_y * k_x is K.
        bias: shape (O,), or None.
        mask: factor of each sample, shape (B, G K, h, w), or None.

    Returns:
        Shape (B, O, h, w).
    """
    B, C, H, W = x.shape
    K = weight.shape[2] * weight.shape[3]
    h, w = offset.shape[2:]
    groups = C // weight.shape[1]
    rows, columns = (
        torch.arange(size, device=x.device)[:, None] * step
        - margin
        + torch.arange(taps, device=x.device) * spread
        for size, step, margin, taps, spread in zip(
            (h, w), stride, padding, weight.shape[2:], dilation, strict=True
        )
    )  # (h, k_y) and (w, k_x)
    places = offset.view(B, -1, K, 2, h, w).permute(0, 4, 5, 2, 1, 3)  # (B,h,w,K,G,2)
    rows = rows[:, None, :, None].expand(h, w, -1, weight.shape[3]).reshape(h, w, K, 1)
    columns = columns[:, None].expand(h, w, weight.shape[2], -1).reshape(h, w, K, 1)
    x_of, y_of = places[..., 1] + columns + 0.5, places[..., 0] + rows + 0.5
    places = torch.stack([x_of / W, y_of / H], -1)
    G = places.shape[4]
    if mask is None:
        factors = x.new_ones(1).expand(B, h * w * K, G, 1, 1)
    else:
        factors = mask.view(B, G, K, h, w).permute(0, 3, 4, 2, 1)
        factors = factors.reshape(B, -1, G, 1, 1)
    samples = ms_deform_attn(
        x.flatten(2).transpose(1, 2).unflatten(2, (G, -1)),
        [(H, W)],
        places.reshape(B, -1, G, 1, 1, 2),
        factors,
    )  # (B, h * w * K, C)
    samples = samples.view(B, h * w, K, groups, -1).permute(0, 3, 1, 2, 4).flatten(3)
    weight = weight.flatten(2).unflatten(0, (groups, -1))  # (groups, O', C', K)
    out = samples @ weight.permute(0, 3, 2, 1).flatten(1, 2)  # (B, groups, h * w, O')
    out = out.transpose(2, 3).reshape(B, -1, h, w)
    return out if bias is None else out + bias[:, None, None]


def roi_align(
    x: Tensor,
    rois: Tensor,
    output_size: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Compute `torchvision.ops.roi_align`, with a given number of samples.

    Args:
        x: shape (B, C, H, W).
        rois: image and corners (x, y, x, y) of each box, shape (R, 5). They get no
            gradient.
        sampling_ratio: samples of a bin along each axis, positive.

    Returns:
        Shape (R, C, *output_size).
    """
    (H, W), (h, w), n = x.shape[2:], output_size, sampling_ratio
    corners = rois[:, 1:].detach() * spatial_scale - 0.5 * aligned
    sides = corners[:, 2:] - corners[:, :2]
    if not aligned:
        sides = sides.clamp(min=1)
    columns, in_x = _samples(corners[:, 0], sides[:, 0], w * n, W)
    rows, in_y = _samples(corners[:, 1], sides[:, 1], h * n, H)

    def bins(values: Tensor) -> Tensor:  # (R, h * n, w * n) to (R, h * w, n * n)
        values = values.view(-1, h, n, w, n).transpose(2, 3)
        return values.reshape(-1, h * w, n * n)

    shape = len(rois), h * n, w * n
    columns, rows = columns[:, None].expand(shape), rows[..., None].expand(shape)
    places = torch.stack([bins(columns), bins(rows)], -1)
    factors = bins(in_y[..., None] & in_x[:, None]).to(x.dtype) / n**2
    return _pooled(x, rois[:, 0], places, factors).unflatten(2, (h, w))


def _samples(start: Tensor, size: Tensor, count: int, side: int):
    """Return places from 0 to 1 and whether they count, shape (R, count) each.

    A sample up to a pixel outside of the map takes the value of the border.
    """
    steps = (torch.arange(count).to(start) + 0.5) / count
    place = start[:, None] + size[:, None] * steps
    return (place.clamp(0, side - 1) + 0.5) / side, (place >= -1) & (place <= side)


def _pooled(x: Tensor, images: Tensor, places: Tensor, factors: Tensor) -> Tensor:
    """Add the samples of all bins, image by image, shape (R, C, bins)."""
    R, bins, samples = factors.shape
    C = x.shape[1]
    M = C // HEAD_DIMS if C % HEAD_DIMS == 0 else 1
    out = x.new_zeros(R, C, bins)
    for image in range(len(x)):
        (chosen,) = torch.where(images == image)
        queries = 1, len(chosen) * bins, M, 1, samples
        pooled = ms_deform_attn(
            x[image].flatten(1).t().view(1, -1, M, C // M),
            [tuple(x.shape[2:])],
            places[chosen].view(1, -1, 1, 1, samples, 2).expand(*queries, 2),
            factors[chosen].view(1, -1, 1, 1, samples).expand(queries),
        )
        pooled = pooled.view(-1, bins, C).transpose(1, 2)
        out = out.index_copy(0, chosen, pooled)
    return out


def levels_of(
    rois: Tensor, scales: list[float], canonical_scale: int, canonical_level: int
) -> Tensor:
    """Return the map of each box, equation 1 of https://arxiv.org/abs/1612.03144."""
    sides = rois[:, 3:] - rois[:, 1:3]
    area = sides[:, 0] * sides[:, 1]
    level = canonical_level + torch.log2(area.sqrt() / canonical_scale) + 1e-6
    first, last = (-int(math.log2(scale)) for scale in (scales[0], scales[-1]))
    return level.floor().clamp(first, last).long() - first
