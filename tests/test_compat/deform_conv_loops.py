"""Deformable convolution in loops over points, as mmcv's kernels define it."""

import math
from itertools import product

import torch


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def output_size(sides, kernel, stride, padding, dilation):
    stride, padding, dilation = pair(stride), pair(padding), pair(dilation)
    return [
        (side + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, side in enumerate(sides)
    ]


def bilinear(image, y, x):
    """Value of `image` (C, H, W) at a point, zero outside, with gradients for y, x.

    As in mmcv, a point inside is strictly between -1 and H or W. The gradients are
    those of the square right below, also on its upper and left side.
    """
    H, W = image.shape[1:]
    value = image.new_zeros(image.size(0))
    if not (-1 < y < H and -1 < x < W):
        return value
    top, left = math.floor(y.item()), math.floor(x.item())
    rows = {top: top + 1 - y, top + 1: y - top}
    columns = {left: left + 1 - x, left + 1: x - left}
    for row, column in product(rows, columns):
        if 0 <= row < H and 0 <= column < W:
            value = value + rows[row] * columns[column] * image[:, row, column]
    return value


def loop_deform_conv(
    x, offset, weight, mask, bias, *, stride=1, padding=0, dilation=1, groups=1,
    deform_groups=1
):  # fmt: skip
    """The convolution, which reads `offset` and `mask` as mmcv does.

    An image of them is a line of numbers, indexed with the output's height and width.
    """
    B, C, *sides = x.shape
    OUT, _, KH, KW = weight.shape
    OH, OW = output_size(sides, (KH, KW), stride, padding, dilation)
    stride, padding, dilation = pair(stride), pair(padding), pair(dilation)
    # Channels of the input that share offsets, (B, deform_groups, C', H, W).
    shared = x.view(B, deform_groups, -1, *sides)
    members = torch.arange(C).view(deform_groups, -1)
    offset = offset.flatten(1)
    mask = None if mask is None else mask.flatten(1)
    rows = []
    for b, oy, ox in product(range(B), range(OH), range(OW)):
        patch = x.new_zeros(C, KH, KW)
        for g, ky, kx in product(range(deform_groups), range(KH), range(KW)):
            point = (g * KH + ky) * KW + kx
            dy, dx = (
                offset[b, ((2 * point + axis) * OH + oy) * OW + ox] for axis in (0, 1)
            )
            y = oy * stride[0] - padding[0] + ky * dilation[0] + dy
            x_ = ox * stride[1] - padding[1] + kx * dilation[1] + dx
            value = bilinear(shared[b, g], y, x_)
            if mask is not None:
                value = value * mask[b, (point * OH + oy) * OW + ox]
            taps = torch.tensor(ky), torch.tensor(kx)
            patch = patch.index_put((members[g], *taps), value)
        patches = patch.view(groups, -1)
        weights = weight.view(groups, OUT // groups, -1)
        rows.append(torch.einsum('gok,gk->go', weights, patches).flatten())
    out = torch.stack(rows).view(B, OH, OW, OUT).permute(0, 3, 1, 2)
    return out if bias is None else out + bias[:, None, None]
