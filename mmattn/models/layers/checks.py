"""Checks of settings and images that several modules have."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops.common.checks import dtype_name


def check_heads(embed_dims: int, num_heads: int):
    """Raise a ValueError unless the heads divide the channels."""
    if embed_dims % num_heads:
        raise UserError(f'{embed_dims} channels do not split into {num_heads} heads')


def resolve_indices(
    out_indices: int | Sequence[int] | None, count: int, name: str
) -> tuple[int, ...]:
    """Return ascending indices below `count`; None means all of them.

    Negative ones count from the end.

    Raises:
        ValueError: there are none, one is out of range, or they do not ascend. `name`
            begins the message.
    """
    given = range(count) if out_indices is None else out_indices
    given = (given,) if isinstance(given, int) else tuple(given)
    resolved = tuple(i + count if i < 0 else i for i in given)
    if not given or any(not 0 <= i < count for i in resolved):
        raise UserError(
            f'{name}: out_indices must be in [-{count}, {count - 1}], got {out_indices}'
        )
    if list(resolved) != sorted(set(resolved)):
        raise UserError(f'{name}: out_indices must ascend, got {out_indices}')
    return resolved


def resolve_compile(compile: bool | Mapping, name: str) -> dict | None:
    """Return the options of `torch.compile`, or None if nothing is compiled.

    Raises:
        ValueError: `compile` is neither a bool nor a dict; `name` begins the message.
    """
    if isinstance(compile, Mapping):
        return dict(compile)
    if not isinstance(compile, bool):
        raise UserError(
            f'{name}: compile must be a bool or a dict of options of torch.compile, '
            f'got {compile!r}'
        )
    return {} if compile else None


def check_images(backbone: nn.Module, x: Tensor):
    """Check images (B, C, H, W) before the first layer. The batch may be empty.

    Raises:
        ValueError: the backbone does not accept their shape or dtype. Under autocast it
            accepts every floating-point dtype, otherwise only its weights' dtype.
    """
    dtype = next(backbone.stem.parameters()).dtype
    fits = x.dim() == 2 + len(backbone.image_sides)
    fits = fits and (x.dtype == dtype or (x.is_floating_point() and _is_autocast(x)))
    if fits and not torch.jit.is_tracing():  # whose sizes are tensors
        fits = x.shape[1] == backbone.in_channels
        # A compiled graph also runs on other sizes, so it must not depend on these.
        if not torch.compiler.is_compiling():
            fits = fits and min(x.shape[2:]) >= backbone.min_side
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
