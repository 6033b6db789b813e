"""Positions, reference points and padding of the maps of a Deformable DETR.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, section 4 and appendix A. Coordinates are (x, y): 0 is
the outer edge of a map's first pixel, and 1 the last one's. Relative to the image
without padding, 1 is the outer edge of the last pixel that is not padding.
"""

from collections.abc import Sequence
from math import pi

import torch
from torch import Tensor

from mmattn.errors import UserError

TEMPERATURE = 10000
POSITION_OFFSET = -0.5  # from the number of a pixel, counted from 1, to its center
EPSILON = 1e-5  # of the inverse sigmoid
PROPOSAL_SIZE = 0.05  # width and height on the first level; doubles with each level
PROPOSAL_MARGIN = 0.01


def geometry_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype that coordinates are computed in, at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def check_maps(
    feats: Sequence[Tensor],
    masks: Sequence[Tensor] | None,
    num_levels: int,
    embed_dims: int,
):
    """Raise a ValueError unless an encoder or decoder takes these maps and masks."""
    shapes = [tuple(feat.shape) for feat in feats]
    B = shapes[0][0] if shapes else 0
    if len(shapes) != num_levels or any(
        len(shape) != 4 or shape[:2] != (B, embed_dims) for shape in shapes
    ):
        raise UserError(
            f'needs {num_levels} maps of shape (B, {embed_dims}, H, W), got {shapes}'
        )
    if masks is None:
        return
    expected = [(B, H, W) for _, _, H, W in shapes]
    given = [tuple(mask.shape) for mask in masks]
    if given != expected or any(mask.dtype != torch.bool for mask in masks):
        raise UserError(
            f'masks must be bool and of shapes {expected}, got {given} of '
            f'{[mask.dtype for mask in masks]}'
        )


def map_shapes(feats: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return height and width of each of the maps (B, C, H, W)."""
    return [(feat.shape[2], feat.shape[3]) for feat in feats]


def flatten_maps(feats: Sequence[Tensor]) -> Tensor:
    """Return maps (B, C, H, W) as tokens (B, S, C), level after level."""
    return torch.cat([feat.flatten(2).transpose(1, 2) for feat in feats], dim=1)


def split_maps(tokens: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Return tokens (B, S, C) as maps (B, C, H, W), which are views."""
    levels = tokens.split([H * W for H, W in shapes], dim=1)
    return [
        level.transpose(1, 2).unflatten(2, shape)
        for level, shape in zip(levels, shapes, strict=True)
    ]


def flatten_masks(masks: Sequence[Tensor] | None) -> Tensor | None:
    """Return masks (B, H, W) as one mask of the tokens, (B, S)."""
    if masks is None:
        return None
    return torch.cat([mask.flatten(1) for mask in masks], dim=1)


def valid_ratios(masks: Sequence[Tensor] | None, dtype: torch.dtype) -> Tensor | None:
    """Return the share of each side that is not padding, shape (B, L, 2).

    The last axis has width and height. Padding is on the right and at the bottom.
    """
    if masks is None:
        return None
    ratios = [
        torch.stack(
            [(~mask[:, 0]).to(dtype).mean(1), (~mask[..., 0]).to(dtype).mean(1)]
        )
        for mask in masks
    ]  # L of (2, B)
    return torch.stack(ratios).permute(2, 0, 1)


def sine_encoding(angles: Tensor, num_features: int) -> Tensor:
    """Return alternating sines and cosines of falling frequencies.

    The shape is (..., num_features).
    """
    options = dict(dtype=angles.dtype, device=angles.device)
    powers = torch.arange(0, num_features, 2, **options) / num_features
    angles = angles[..., None] / TEMPERATURE**powers
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def sine_positions(
    shape: tuple[int, int],
    mask: Tensor | None,
    embed_dims: int,
    *,
    offset: float = POSITION_OFFSET,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return the sine encodings of pixels, with y in the first half of the channels.

    Args:
        shape: height H and width W of the map.
        mask: shape (B, H, W), True at padding, or None.
        embed_dims: channels C, divisible by 4.
        offset: added to the pixels' indices, which begin with 1.

    Returns:
        Shape (B, H * W, C), where B is 1 without a mask.
    """
    H, W = shape
    if mask is None:
        y, x = (torch.arange(1, side + 1, dtype=dtype, device=device) for side in shape)
        angles = [normalized_angle(index, index[-1:], offset) for index in (y, x)]
        y, x = sine_encoding(torch.cat(angles), embed_dims // 2).split([H, W])
        positions = torch.cat(
            [y[:, None].expand(-1, W, -1), x[None].expand(H, -1, -1)], dim=-1
        )
        return positions.flatten(0, 1)[None]
    valid = (~mask).to(dtype)
    y, x = valid.cumsum(1), valid.cumsum(2)
    y = normalized_angle(y, y[:, -1:], offset)
    x = normalized_angle(x, x[:, :, -1:], offset)
    encodings = sine_encoding(torch.stack([y, x], dim=-1), embed_dims // 2)
    return encodings.flatten(-2).flatten(1, 2)


def normalized_angle(index: Tensor, last: Tensor, offset: float) -> Tensor:
    """Scale the pixels of a side, counted from 1 to `last`, to angles up to 2 pi."""
    return (index + offset) / (last + 1e-6) * (2 * pi)


def pixel_centers(
    shapes: Sequence[tuple[int, int]],
    ratios: Tensor | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return the centers of all levels' pixels, relative to the image without padding.

    The shape is (B, S, 2), where B is 1 without `ratios`.
    """
    centers = []
    for level, (H, W) in enumerate(shapes):
        if ratios is None:
            valid = W, H
        else:  # round, since a ratio times its side may miss the whole number
            width, height = ratios[:, level].unbind(-1)
            valid = (width * W).round()[:, None], (height * H).round()[:, None]
        x, y = (
            (torch.arange(side, dtype=dtype, device=device) + 0.5)[None] / valid_side
            for side, valid_side in zip((W, H), valid, strict=True)
        )  # (B, W) and (B, H)
        x, y = x[:, None].expand(-1, H, -1), y[..., None].expand(-1, -1, W)
        centers.append(torch.stack([x, y], dim=-1).flatten(1, 2))
    return torch.cat(centers, dim=1)


def on_levels(reference: Tensor, ratios: Tensor | None) -> Tensor:
    """Convert references relative to the image without padding to each level's own.

    Args:
        reference: points (B, Q, 2) or boxes (B, Q, 4).
        ratios: `valid_ratios`, shape (B, L, 2), or None.

    Returns:
        Shape (B, Q, L, 2 or 4). L is 1 without ratios, as all levels have the same.
    """
    if ratios is None:
        return reference[:, :, None]
    if reference.shape[-1] == 4:
        ratios = torch.cat([ratios, ratios], dim=-1)
    return reference[:, :, None] * ratios[:, None]


def inverse_sigmoid(x: Tensor) -> Tensor:
    """Return logits of x in [0, 1], with x and 1 - x at least `EPSILON`."""
    return (x.clamp(EPSILON, 1.0) / (1 - x).clamp(EPSILON, 1.0)).log()


def box_proposals(
    shapes: Sequence[tuple[int, int]],
    ratios: Tensor | None,
    padding_mask: Tensor | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Propose a square around each pixel for the first stage, larger on coarse levels.

    Args:
        ratios: `valid_ratios`, shape (B, L, 2), or None.
        padding_mask: shape (B, S), True at padding, or None.

    Returns:
        Logits of the boxes (x, y, w, h), shape (B, S, 4), and which of them are
        proposals, shape (B, S, 1). A proposal is not in the padding, and its four
        numbers are between `PROPOSAL_MARGIN` and 1 - `PROPOSAL_MARGIN`. The logits of
        other pixels are infinite. B is 1 without masks.
    """
    centers = pixel_centers(shapes, ratios, dtype=dtype, device=device)
    sizes = [
        torch.full((H * W, 2), PROPOSAL_SIZE * 2**level, dtype=dtype, device=device)
        for level, (H, W) in enumerate(shapes)
    ]
    sizes = torch.cat(sizes).expand(len(centers), -1, -1)
    boxes = torch.cat([centers, sizes], dim=-1)
    valid = (boxes > PROPOSAL_MARGIN) & (boxes < 1 - PROPOSAL_MARGIN)
    valid = valid.all(-1, keepdim=True)
    if padding_mask is not None:
        valid = valid & ~padding_mask[..., None]
    logits = (boxes / (1 - boxes)).log()
    return logits.masked_fill(~valid, torch.inf), valid


def box_positions(boxes: Tensor, embed_dims: int) -> Tensor:
    """Return the sine encodings (B, Q, 2 * C) of boxes (B, Q, 4) in [0, 1]."""
    return sine_encoding(boxes * (2 * pi), embed_dims // 2).flatten(-2)
