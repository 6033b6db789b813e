"""Whole patches of an image, and position embeddings for any grid of them."""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.ops.common.exporting import is_same_size

from .grid_conv import GridConv
from .resize import fit_on_load, resize_flat_grid


def pad_to_patches(x: Tensor, patch_size: int) -> Tensor:
    """Pad images (B, C, H, W) with zeros right and below to whole patches."""
    H, W = x.shape[-2:]
    P = patch_size
    # Not -W % P: PyTorch cannot compile every remainder of a changing size.
    pad_h, pad_w = ((side + P - 1) // P * P - side for side in (H, W))
    return F.pad(x, (0, pad_w, 0, pad_h))


def fit_image_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapt the loaded weight of a convolution of RGB images to other images.

    As in timm, one channel gets the sum over RGB, which treats a gray image like three
    equal channels. Others repeat R, G, B, times 3 / channels.

    Args:
        weight: shape (O, 3, h, w). Other shapes are returned as they are.
        channels: channels of the images.
    """
    if weight.dim() != 4 or weight.shape[1] != 3 or channels == 3:
        return weight
    if channels == 1:
        return weight.float().sum(1, keepdim=True).to(weight.dtype)
    repeated = weight.repeat(1, -(-channels // 3), 1, 1)[:, :channels]
    return repeated * (3 / channels)


def grid_of(img_size: int | Sequence[int], stride: int) -> tuple[int, int]:
    """Return the (H, W) of an image's map at a stride, rounded up.

    Args:
        img_size: image side, or (height, width).
        stride: pixels of the image from one pixel of the map to the next.
    """
    sides = (img_size,) * 2 if isinstance(img_size, int) else img_size
    return tuple(-(-side // stride) for side in sides)


def resize_pos_embed(
    pos_embed: Tensor,
    old_grid: Sequence[int],
    new_grid: Sequence[int],
    *,
    mode: str = 'bicubic',
) -> Tensor:
    """Resize a position embedding (1, N, C) to (1, N', C), see `resize_grid`."""
    return resize_flat_grid(pos_embed, old_grid, new_grid, dim=1, mode=mode)


def pos_embed_map(
    pos_embed: Tensor,
    old_grid: Sequence[int],
    grid: Sequence[int],
    *,
    mode: str = 'bicubic',
) -> Tensor:
    """Return a position embedding (1, N, C) of `old_grid` as a map (1, *grid, C)."""
    if not is_same_size(grid, old_grid):
        pos_embed = resize_pos_embed(pos_embed, old_grid, grid, mode=mode)
    return pos_embed.unflatten(1, tuple(grid))


def pos_embed_tokens(
    pos_embed: Tensor,
    old_grid: Sequence[int],
    grid: Sequence[int],
    num_special: int,
    *,
    mode: str = 'bicubic',
) -> Tensor:
    """Resize a position embedding (1, num_special + N, C) to `grid` (H, W).

    Special tokens come first; their positions stay as they are.
    """
    if is_same_size(grid, old_grid):
        return pos_embed
    special, patches = pos_embed[:, :num_special], pos_embed[:, num_special:]
    patches = resize_pos_embed(patches, old_grid, grid, mode=mode)
    return torch.cat([special, patches], dim=1)


class PatchStem(nn.Module):
    """Patches of images with learned positions: (B, H, W, C) to (B, h, w, C').

    Zeros pad the images right and below to whole patches.

    Args:
        in_channels: channels C of the images.
        embed_dims: channels C' of the patches.
        patch_size: side of a patch.
        img_size: image side, or (height, width), that the positions are made for. They
            are resized for other grids (bicubic), at run time and on load.
        num_special: special tokens, which have the first positions. `forward` is then
            the subclass's.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        img_size: int | Sequence[int],
        num_special: int = 0,
    ):
        super().__init__()
        self.patch_size = patch_size
        self.grid_size = grid_of(img_size, patch_size)
        self.num_special = num_special
        self.proj = GridConv(in_channels, embed_dims, patch_size, stride=patch_size)
        count = num_special + prod(self.grid_size)
        self.pos_embed = nn.Parameter(torch.empty(1, count, embed_dims))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        fit_on_load(self, 'pos_embed', self.grid_size, dim=1, num_special=num_special)

    def no_weight_decay(self) -> set[str]:
        return {'pos_embed'}

    def embed(self, x: Tensor) -> Tensor:
        """Embed the patches without their positions."""
        x = pad_to_patches(x.movedim(-1, 1), self.patch_size)
        return self.proj(x.movedim(1, -1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return x + pos_embed_map(self.pos_embed, self.grid_size, x.shape[1:3])
