"""The deformable operators of `mmattn.compat.mmcv_ops`: convolution and attention.

The convolutions run on torchvision's operator, which is defined as mmcv's: offsets are
ordered (y, x) within each kernel position, kernel positions within each deform group,
and the feature map is zero outside. `deform_conv_points.py` corrects the differences.
Attention runs on `mmattn.ops.ms_deform_attn`, which is imported when it is called. The
arithmetic is float32 for float16 and bfloat16 storage.
"""

import math
import weakref
from collections.abc import Mapping, Sequence

import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from mmattn.errors import UserError

from . import widen
from .deform_conv_points import (
    drop_outside,
    first_elements,
    write_first_elements,
)


def _tensors(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor
) -> list[Tensor]:
    """Return tensor arguments for torchvision, with zeros for absent ones.

    torchvision reads outside the map where an offset is NaN. mmcv counts such points as
    outside, and so do we.
    """
    if mask is None:
        mask = input.new_zeros(input.size(0), 1)
    if bias.numel() == 0:
        bias = input.new_zeros(weight.size(0))
    tensors = [widen(tensor) for tensor in (input, weight, offset, mask, bias)]
    outside = math.inf
    tensors[2] = tensors[2].nan_to_num(outside, posinf=outside, neginf=-outside)
    return tensors


def _backward(
    grad_output: Tensor, tensors: list[Tensor], geometry: tuple[int, ...], mask: bool
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight, offset, mask and bias, as mmcv does."""
    gradients = torch.ops.torchvision._deform_conv2d_backward(
        widen(grad_output), *tensors, *geometry, mask
    )
    input, weight, offset, *_ = tensors
    drop_outside(gradients[2], offset, input.shape[2:], weight.shape[2:], geometry)
    return gradients


def _geometry(names: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return stride, padding, dilation and groups of mmcv's call for torchvision's."""
    return tuple(sizes[name] for name in f'{names} group deformable_group'.split())


PLAIN = 'dH dW padH padW dilationH dilationW'
MODULATED = 'stride_h stride_w pad_h pad_w dilation_h dilation_w'


def deform_conv_forward(input, weight, offset, output, columns, ones, **sizes):
    """Write the deformable convolution (v1) into `output`.

    Args:
        input: shape (B, C, H, W).
        weight: shape (O, C / group, kH, kW).
        offset: shape (B, 2 * deformable_group * kH * kW, H', W').
        output: shape (B, O, H', W'), written.
        columns, ones: mmcv's scratch space; ignored.
        sizes: of the kernel, as in `weight`, and of what `PLAIN` names; `im2col_step`
            is ignored.
    """
    tensors = _tensors(input, weight, offset, None, weight.new_empty(0))
    geometry = _geometry(PLAIN, sizes)
    output.copy_(torch.ops.torchvision.deform_conv2d(*tensors, *geometry, False))


def deform_conv_backward_input(
    input, offset, gradOutput, gradInput, gradOffset, weight, columns, **sizes
):
    """Write the gradients of `input` and `offset`; see `deform_conv_forward`."""
    tensors = _tensors(input, weight, offset, None, weight.new_empty(0))
    gradients = _backward(gradOutput, tensors, _geometry(PLAIN, sizes), False)
    gradInput.copy_(gradients[0])
    gradOffset.copy_(gradients[2])


def deform_conv_backward_parameters(
    input, offset, gradOutput, gradWeight, columns, ones, scale, **sizes
):
    """Write `scale` times the gradient of the weight; see `deform_conv_forward`.

    torchvision computes all gradients at once, so this repeats the work of
    `deform_conv_backward_input`. The gradient does not depend on the weight's values.
    """
    tensors = _tensors(input, gradWeight, offset, None, gradWeight.new_empty(0))
    _, grad_weight, *_ = torch.ops.torchvision._deform_conv2d_backward(
        widen(gradOutput), *tensors, *_geometry(PLAIN, sizes), False
    )
    gradWeight.copy_(grad_weight * scale)


def modulated_deform_conv_forward(
    input, weight, bias, ones, offset, mask, output, columns, **sizes
):
    """Write the modulated deformable convolution (v2) into `output`.

    Args:
        input: shape (B, C, H, W).
        weight: shape (O, C / group, kernel_h, kernel_w).
        bias: shape (O,), or empty without one.
        offset: shape (B, 2 * deformable_group * kernel_h * kernel_w, H', W'), or
            larger maps, from which `first_elements` takes a part.
        mask: shape (B, deformable_group * kernel_h * kernel_w, H', W'), or larger
            maps.
        output: shape (B, O, H', W'), written.
        ones, columns: mmcv's scratch space; ignored.
        sizes: of the kernel, as in `weight`, and of what `MODULATED` names.

    Raises:
        ValueError: the maps of `offset` or `mask` are smaller than the output.
    """
    size = output.shape[2:]
    offset = first_elements('offset', offset, size)
    mask = first_elements('mask', mask, size)
    tensors = _tensors(input, weight, offset, mask, bias)
    geometry = _geometry(MODULATED, sizes)
    output.copy_(torch.ops.torchvision.deform_conv2d(*tensors, *geometry, True))


def modulated_deform_conv_backward(
    input, weight, bias, ones, offset, mask, columns, grad_input, grad_weight,
    grad_bias, grad_offset, grad_mask, grad_output, *, with_bias, **sizes,
):  # fmt: skip
    """Write the five gradients; see `modulated_deform_conv_forward`."""
    size = grad_output.shape[2:]
    offset = first_elements('offset', offset, size)
    mask = first_elements('mask', mask, size)
    tensors = _tensors(input, weight, offset, mask, bias)
    gradients = _backward(grad_output, tensors, _geometry(MODULATED, sizes), True)
    grad_input.copy_(gradients[0])
    grad_weight.copy_(gradients[1])
    write_first_elements(grad_offset, gradients[2])
    write_first_elements(grad_mask, gradients[3])
    if with_bias:
        grad_bias.copy_(gradients[4])


def levels_of(spatial_shapes: Tensor, level_start_index: Tensor) -> list[list[int]]:
    """Return heights and widths as numbers, and check where the levels start.

    Reading them from a GPU waits for the GPU. All layers of a model receive the same
    two tensors, so the numbers are kept as long as the tensors live and are not written
    to.

    Raises:
        ValueError: levels do not follow one another.
    """
    tensors = spatial_shapes, level_start_index
    is_kept = any(map(_is_elsewhere, tensors)) and not any(
        tensor.is_inference()
        for tensor in tensors  # which have no version
    )
    if is_kept and (kept := _LEVELS.get(spatial_shapes)) is not None:
        levels, versions, starts = kept
        if starts() is level_start_index and versions == _versions(tensors):
            return levels
    numbers = torch.cat([tensor.flatten() for tensor in tensors]).tolist()
    count = spatial_shapes.shape[0]
    sides, starts = numbers[: 2 * count], numbers[2 * count :]
    levels = [sides[i : i + 2] for i in range(0, 2 * count, 2)]
    first = 0
    for (height, width), start in zip(levels, starts, strict=True):
        if start != first:
            raise UserError(
                f'levels of {levels} must follow one another, got starts {starts}'
            )
        first += height * width
    if is_kept:
        kept = levels, _versions(tensors), weakref.ref(level_start_index)
        _LEVELS[spatial_shapes] = kept
    return levels


_LEVELS = WeakTensorKeyDictionary()


def _is_elsewhere(tensor: Tensor) -> bool:
    return tensor.device.type != 'cpu'


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def ms_deform_attn_forward(
    value,
    spatial_shapes,
    level_start_index,
    sampling_locations,
    attention_weights,
    im2col_step,
):
    """Call `mmattn.ops.ms_deform_attn` with mmcv's arguments.

    Args:
        value: shape (B, S, M, D), S the pixels of all levels.
        spatial_shapes: shape (L, 2), height and width of each level.
        level_start_index: shape (L,); the levels must follow one another.
        sampling_locations: shape (B, Q, M, L, P, 2), (x, y) from 0 to 1.
        attention_weights: shape (B, Q, M, L, P).
        im2col_step: images per step in mmcv; ignored.

    Returns:
        shape (B, Q, M * D), in value's dtype.
    """
    from mmattn.ops import ms_deform_attn

    levels = levels_of(spatial_shapes, level_start_index)
    with torch.autocast(value.device.type, enabled=False):
        return ms_deform_attn(value, levels, sampling_locations, attention_weights)


def ms_deform_attn_backward(
    value,
    spatial_shapes,
    level_start_index,
    sampling_locations,
    attention_weights,
    grad_output,
    grad_value,
    grad_sampling_loc,
    grad_attn_weight,
    im2col_step,
):
    """Write the three gradients; see `ms_deform_attn_forward`."""
    from mmattn.ops.ms_deform_attn import interface

    gradients = interface.ms_deform_attn_backward(
        grad_output,
        value,
        levels_of(spatial_shapes, level_start_index),
        sampling_locations,
        attention_weights,
    )
    written = grad_value, grad_sampling_loc, grad_attn_weight
    for buffer, gradient in zip(written, gradients, strict=True):
        buffer.copy_(gradient)
