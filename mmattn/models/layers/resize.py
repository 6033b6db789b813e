"""One way to bring learned maps to another size."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_grid(x: Tensor, size: Sequence[int], *, mode: str = 'bicubic') -> Tensor:
    """Resize the last two axes of `x`, shape (..., H, W), to `size`.

    Position embeddings and tables of relative positions are resized so, on load and at
    run time. The outer edges of the map stay in place, `align_corners=False`, as in the
    code of Swin Transformer (https://github.com/microsoft/Swin-Transformer), DAT
    (https://github.com/LeapLabTHU/DAT) and PVT (https://github.com/whai362/PVT). A
    middle entry stays in the middle. There is no antialiasing, because PyTorch cannot
    compile its backward for changing sizes.

    Args:
        x: shape (..., H, W). Half precision is interpolated in float32.
        size: the new (H, W).
        mode: 'bicubic' or 'bilinear', as in `F.interpolate`.
    """
    if tuple(x.shape[-2:]) == tuple(size):
        return x
    dtype = torch.promote_types(x.dtype, torch.float32)
    maps = x.to(dtype).reshape(1, -1, *x.shape[-2:])
    maps = F.interpolate(maps, tuple(size), mode=mode, align_corners=False)
    return maps.reshape(*x.shape[:-2], *size).to(x.dtype)
