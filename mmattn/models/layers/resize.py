"""Learned maps of another size, at run time and on load."""

from collections.abc import Sequence
from functools import partial
from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.ops.common.exporting import is_same_size
from mmattn.ops.common.precision import without_autocast


def resize_grid(x: Tensor, size: Sequence[int], *, mode: str = 'bicubic') -> Tensor:
    """Resize the last two axes of `x`, shape (..., H, W), to `size`.

    Position embeddings and tables of relative positions are resized this way. The outer
    edges of the map stay in place, `align_corners=False`, as in the code of Swin
    Transformer (https://github.com/microsoft/Swin-Transformer), DAT
    (https://github.com/LeapLabTHU/DAT) and PVT (https://github.com/whai362/PVT). A
    middle entry stays in the middle. There is no antialiasing, because PyTorch cannot
    compile its backward for changing sizes.

    Args:
        x: shape (..., H, W). Half precision is interpolated in float32.
        size: the new (H, W).
        mode: 'bicubic' or 'bilinear', as in `F.interpolate`.
    """
    if is_same_size(x.shape[-2:], size):
        return x
    dtype = torch.promote_types(x.dtype, torch.float32)
    maps = x.to(dtype).reshape(1, -1, *x.shape[-2:])
    interpolate = F.interpolate
    if x.device.type != 'cpu' and torch.are_deterministic_algorithms_enabled():
        interpolate = interpolate_in_order
    maps = interpolate(maps, tuple(size), mode=mode, align_corners=False)
    return maps.reshape(*x.shape[:-2], *size).to(x.dtype)


def interpolate_in_order(maps: Tensor, size: Sequence[int], **settings) -> Tensor:
    """Compute `F.interpolate` of (B, C, H, W) by a matrix product for each axis.

    `torch.use_deterministic_algorithms` refuses the gradient of `F.interpolate` on a
    GPU. The matrices are interpolated unit vectors.
    """
    with without_autocast(maps):
        rows, columns = (
            F.interpolate(unit[None, None], (count, len(unit)), **settings)[0, 0]
            for side, count in zip(maps.shape[-2:], size, strict=True)
            for unit in [torch.eye(side, dtype=maps.dtype, device=maps.device)]
        )
        return rows @ maps @ columns.mT


def resize_flat_grid(
    x: Tensor,
    old_size: Sequence[int],
    size: Sequence[int],
    *,
    dim: int,
    mode: str = 'bicubic',
) -> Tensor:
    """Resize a map whose sides are one axis of `x`, in row-major order.

    Args:
        x: its axis `dim` has H * W entries for `old_size` (H, W).
        old_size, size: the old and the new (H, W).
        dim: the axis, 0 or more.
        mode: see `resize_grid`.
    """
    sides = dim, dim + 1
    maps = x.unflatten(dim, tuple(old_size)).movedim(sides, (-2, -1))  # (..., H, W)
    return resize_grid(maps, size, mode=mode).movedim((-2, -1), sides).flatten(*sides)


def fit_on_load(
    module: nn.Module,
    name: str,
    size: Sequence[int] | None = None,
    *,
    dim: int | None = None,
    num_special: int = 0,
    mode: str = 'bicubic',
):
    """Let a module resize a loaded map to its own parameter.

    What does not fit stays as it is, so that `load_state_dict` reports both shapes.

    Args:
        module: the module that the parameter belongs to.
        name: name of the parameter.
        size: its (H, W), if `dim` is given.
        dim: the axis that has both sides, as in `resize_flat_grid`. A loaded map is
            then taken to be square. None if the last two axes are the sides.
        num_special: entries of `dim` that come before the map and are kept.
        mode: see `resize_grid`.
    """
    settings = dict(name=name, size=size, dim=dim, num_special=num_special, mode=mode)
    # A partial can be pickled with the module; a closure cannot.
    module.register_load_state_dict_pre_hook(partial(fit_loaded, **settings))


def fit_loaded(
    module: nn.Module,
    state_dict: dict,
    prefix: str,
    *args,
    name: str,
    size: Sequence[int] | None,
    dim: int | None,
    num_special: int,
    mode: str,
):
    """Resize one entry of a state dict to a parameter; see `fit_on_load`."""
    key = prefix + name
    if key not in state_dict:
        return
    loaded, own = state_dict[key], module.get_parameter(name)
    if loaded.dim() != own.dim() or loaded.shape == own.shape:
        return
    if dim is None:
        if loaded.shape[:-2] == own.shape[:-2]:
            state_dict[key] = resize_grid(loaded, own.shape[-2:], mode=mode)
        return
    count = loaded.shape[dim] - num_special
    side = isqrt(max(0, count))
    if count < 1 or side * side != count:
        return
    special, pixels = loaded.split([num_special, count], dim)
    pixels = resize_flat_grid(pixels, (side, side), size, dim=dim, mode=mode)
    state_dict[key] = torch.cat([special, pixels], dim)


def crop_on_load(module: nn.Module, name: str):
    """Let a module take the middle of a larger kernel (..., H, W) that is loaded.

    What does not fit stays as it is, so that `load_state_dict` reports both shapes.

    Args:
        module: the module that the parameter belongs to.
        name: name of the parameter.
    """
    module.register_load_state_dict_pre_hook(partial(crop_loaded, name=name))


def crop_loaded(module: nn.Module, state_dict: dict, prefix: str, *args, name: str):
    """Crop one entry of a state dict to a parameter; see `crop_on_load`."""
    key = prefix + name
    if key not in state_dict:
        return
    loaded, own = state_dict[key], module.get_parameter(name)
    if loaded.dim() != own.dim() or loaded.shape[:-2] != own.shape[:-2]:
        return
    margins = [a - b for a, b in zip(loaded.shape[-2:], own.shape[-2:], strict=True)]
    if min(margins) < 0 or any(margin % 2 for margin in margins):
        return
    (top, left), (H, W) = (m // 2 for m in margins), own.shape[-2:]
    state_dict[key] = loaded[..., top : top + H, left : left + W]
