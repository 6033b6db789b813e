"""Bilinear samples of maps, in every mode of differentiation."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .derivatives import needs_reference


def sample_maps(maps: Tensor, places: Tensor, *, align_corners: bool) -> Tensor:
    """Compute `grid_sample`, bilinear with zeros outside of the maps.

    PyTorch before 2.15 has no forward-mode derivative of `grid_sample`, and PyTorch
    2.10 no second derivative. So in forward mode, and in the transforms of `torch.func`
    that differentiate, this gathers the four pixels around each place instead. So it
    does with `torch.use_deterministic_algorithms`, which refuses the gradient of
    `grid_sample` on a GPU.

    Args:
        maps: shape (B, C, H, W).
        places: (x, y), shape (B, h, w, 2), dtype as maps. With `align_corners` -1 and 1
            are the centers of the outer pixels, otherwise their outer edges.
        align_corners: see `places`.

    Returns:
        Shape (B, C, h, w).
    """
    gathers = needs_reference(maps, places) or (
        maps.device.type != 'cpu' and torch.are_deterministic_algorithms_enabled()
    )
    sample = gather_samples if gathers else F.grid_sample
    return sample(maps, places, align_corners=align_corners)


def gather_samples(maps: Tensor, places: Tensor, *, align_corners: bool) -> Tensor:
    """Compute `sample_maps` by operators with derivatives of any order and mode."""
    sides = maps.shape[:1:-1]  # W and H
    columns, rows = (
        _neighbors(place, side, align_corners)
        for place, side in zip(places.unbind(-1), sides, strict=True)
    )
    pixels, out = maps.flatten(2), 0
    for row, share_y in rows:
        for column, share_x in columns:
            index = (row * maps.shape[3] + column).flatten(1)  # (B, h * w)
            taken = pixels.gather(2, index[:, None].expand(-1, maps.shape[1], -1))
            share = share_y * share_x
            out = out + taken.unflatten(2, share.shape[1:]) * share[:, None]
    return out


def _neighbors(
    place: Tensor, side: int, align_corners: bool
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return index and share of the pixels before and after a place on an axis.

    Both are 0 for a pixel outside of the map.
    """
    if align_corners:
        place = (place + 1) / 2 * (side - 1)
    else:
        place = ((place + 1) * side - 1) / 2
    # Pixels further out are zeros too, and their index would overflow.
    place = place.clamp(-2, side + 1)
    before = place.floor()
    share = place - before
    return tuple(
        (torch.where(inside, pixel, 0).long(), torch.where(inside, share, 0))
        for pixel, share in ((before, 1 - share), (before + 1, share))
        for inside in [(pixel >= 0) & (pixel < side)]
    )
