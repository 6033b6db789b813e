"""Checks of the calls of a backbone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmattn.errors import UserError
from mmattn.ops.checks import dtype_name

if TYPE_CHECKING:
    from .base_backbone import BaseBackbone


def check_images(backbone: 'BaseBackbone', x: Tensor):
    """Check images (B, C, H, W) before the first layer. The batch may be empty.

    Raises:
        ValueError: a backbone does not accept their shape or dtype. Under autocast it
            accepts every floating-point dtype, otherwise that of its weights.
    """
    dtype = backbone.get_submodule(backbone.stem_conv).weight.dtype
    fits = x.dim() == 2 + len(backbone.image_sides)
    fits = fits and (x.dtype == dtype or (x.is_floating_point() and _is_autocast(x)))
    if fits and not torch.jit.is_tracing():  # whose sizes are tensors
        _, channels, *sides = x.shape
        fits = channels == backbone.in_channels
        # A compiled graph serves other sizes, so it must not depend on these.
        if not torch.compiler.is_compiling():
            fits = fits and min(sides) >= backbone.min_side
    if not fits:
        shape = ', '.join(('B', str(backbone.in_channels), *backbone.image_sides))
        raise UserError(
            f'{type(backbone).__name__}: images must have shape ({shape}), sides of '
            f'{backbone.min_side} or more, and the dtype {dtype_name(dtype)} of the '
            f'weights, got {tuple(x.shape)} of {dtype_name(x.dtype)}'
        )


def _is_autocast(x: Tensor) -> bool:
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def take_indices(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Return indices below `count`, as timm reads them.

    None takes all, a number as many of the last; negative indices count from the end.

    Raises:
        ValueError: one is out of range.
    """
    if isinstance(indices, int):
        given = range(count - indices, count) if 0 < indices <= count else None
    else:
        given = range(count) if indices is None else indices
    if not given or any(not -count <= index < count for index in given):
        raise UserError(
            f'indices must be a number in [1, {count}], or a list of numbers in '
            f'[-{count}, {count - 1}], got {indices}'
        )
    return [index % count for index in given]
