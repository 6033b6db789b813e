"""Multi-scale deformable attention, written with `grid_sample`.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, equation 3 and appendix A.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.sampling import sample_maps


def ms_deform_attn_reference(
    value: Tensor,
    points: Tensor,
    weights: Tensor,
    reference: Tensor | None,
    *,
    shapes: Sequence[int],
) -> Tensor:
    """Compute both operators, with the arguments of the kernels.

    Args:
        value: shape (B, S, M, D).
        points: shape (B, Q, M, L, P, 2), locations, or offsets if `reference` is given.
        weights: shape (B, Q, M, L, P), attention weights, or their logits if
            `reference` is given.
        reference: shape (B, Q, L or 1, 2 or 4), or None.
        shapes: heights and widths of the levels in turn, 2 * L numbers.

    Returns:
        Shape (B, Q, M, D), dtype as value.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    points, weights = points.to(dtype), weights.to(dtype)
    if reference is not None:
        points = sampling_locations(points, reference.to(dtype), shapes)
        weights = weights.flatten(3).softmax(-1).view_as(weights)
    B, _, M, D = value.shape
    levels = levels_of(shapes)
    maps = value.to(dtype).split([H * W for H, W in levels], dim=1)
    out = 0
    for level, ((H, W), pixels) in enumerate(zip(levels, maps, strict=True)):
        pixels = pixels.permute(0, 2, 3, 1).reshape(B * M, D, H, W)
        places = points[:, :, :, level].transpose(1, 2).flatten(0, 1)  # (B * M, Q, P)
        # Select with `where`, since 0 * inf would be NaN.
        is_finite = places.isfinite().all(-1, keepdim=True)
        places = torch.where(is_finite, 2 * places - 1, 3.0)  # 3: outside the map
        samples = sample_maps(pixels, places, align_corners=False)
        samples = samples.unflatten(0, (B, M))  # (B, M, D, Q, P)
        out = out + torch.einsum('bmdqp,bqmp->bqmd', samples, weights[:, :, :, level])
    return out.to(value.dtype)


def levels_of(shapes: Sequence[int]) -> list[tuple[int, int]]:
    """Return height and width of each level."""
    return list(zip(shapes[::2], shapes[1::2], strict=True))


def sampling_locations(
    offsets: Tensor, reference: Tensor, shapes: Sequence[int]
) -> Tensor:
    """Return the normalized (x, y) of the points, shape (B, Q, M, L, P, 2).

    From a reference point offsets are in pixels of their level. From the center of a
    reference box they are in half sizes of the box over P.
    """
    reference = reference[:, :, None, :, None]  # (B, Q, 1, L or 1, 1, 2 or 4)
    if reference.shape[-1] == 2:
        sizes = offsets.new_tensor([[W, H] for H, W in levels_of(shapes)])
        return reference + offsets / sizes[:, None]
    P = offsets.shape[4]
    return reference[..., :2] + offsets / P * reference[..., 2:] * 0.5
