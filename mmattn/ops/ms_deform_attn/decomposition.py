"""Multi-scale deformable attention by gathers of pixels, for exported graphs."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .reference import levels_of


def ms_deform_attn_decomposition(
    value: Tensor,
    points: Tensor,
    weights: Tensor,
    reference: Tensor | None,
    *,
    shapes: Sequence[int],
) -> Tensor:
    """Return `ms_deform_attn_reference` of the same arguments.

    This is faster in ONNX Runtime than `GridSample`, see the README.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    points, weights = points.to(dtype), weights.to(dtype)
    if reference is not None:
        reference = reference.to(dtype)[:, :, None, :, None]  # (B, Q, 1, L or 1, 1, *)
        weights = weights.flatten(3).softmax(-1).unflatten(3, weights.shape[3:])
    levels = levels_of(shapes)
    maps = value.to(dtype).transpose(1, 2).split([H * W for H, W in levels], dim=2)
    out = 0
    for level, (size, pixels) in enumerate(zip(levels, maps, strict=True)):
        places = points[:, :, :, level]  # (B, Q, M, P, 2)
        if reference is not None:
            around = reference[:, :, :, min(level, reference.shape[3] - 1)]
            places = _locations(places, around, size)
        places, factors = (
            x.transpose(1, 2) for x in (places, weights[:, :, :, level])
        )  # (B, M, Q, P, *)
        out = out + _sample(pixels, size, places, factors)
    return out.transpose(1, 2).to(value.dtype)


def _locations(offsets: Tensor, reference: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the normalized (x, y) around points or boxes, as `sampling_locations`."""
    H, W = size
    if reference.shape[-1] == 2:
        x, y = offsets.unbind(-1)
        return reference + torch.stack([x / W, y / H], -1)
    P = offsets.shape[-2]
    return reference[..., :2] + offsets / P * reference[..., 2:] * 0.5


def _sample(
    pixels: Tensor, size: tuple[int, int], places: Tensor, factors: Tensor
) -> Tensor:
    """Return the weighted sum of a map's values at P places, (B, M, Q, D).

    Args:
        pixels: shape (B, M, H * W, D).
        size: H and W.
        places: normalized (x, y), shape (B, M, Q, P, 2).
        factors: weights of the places, shape (B, M, Q, P).
    """
    (H, W), (B, M, _, D) = size, pixels.shape
    Q, P = factors.shape[2:]
    is_finite = places.isfinite().all(-1)
    x, y = (
        # A point outside lies on a border of zeros.
        torch.where(is_finite, place * side - 0.5, -1).clamp(-1, side)
        for place, side in zip(places.unbind(-1), (W, H), strict=True)
    )
    left, top = x.floor(), y.floor()
    right, bottom = x - left, y - top
    corners = torch.stack(
        [
            (1 - bottom) * (1 - right),
            (1 - bottom) * right,
            bottom * (1 - right),
            bottom * right,
        ],
        -1,
    )
    width, count = W + 2, (H + 2) * (W + 2)
    pixels = F.pad(pixels.unflatten(2, size), (0, 0, 1, 1, 1, 1)).flatten(0, 3)
    first = torch.arange(B * M, device=pixels.device).view(B, M, 1, 1) * count
    # A pixel after the last has weight 0, and any other may take its place.
    rows, columns = (
        (start.long() + 1, (start.long() + 2).clamp(max=side + 1))
        for start, side in ((top, H), (left, W))
    )
    index = torch.stack(
        [first + row * width + column for row in rows for column in columns], -1
    )
    samples = pixels.index_select(0, index.flatten()).view(B * M * Q, 4 * P, D)
    factors = (corners * factors[..., None]).reshape(B * M * Q, 1, 4 * P)
    return (factors @ samples).view(B, M, Q, D)
