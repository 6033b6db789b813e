"""What plain networks share: whole patches, and a position embedding for any grid."""

from collections.abc import Sequence
from math import isqrt, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .resize import resize_grid


def pad_to_patches(x: Tensor, patch_size: int) -> Tensor:
    """Images (B, C, H, W), padded with zeros right and below to whole patches."""
    H, W = x.shape[-2:]
    P = patch_size
    # Not -W % P: PyTorch compiles divisions of a changing size, remainders not all.
    pad_h, pad_w = ((side + P - 1) // P * P - side for side in (H, W))
    return F.pad(x, (0, pad_w, 0, pad_h))


def resize_pos_embed(
    pos_embed: Tensor,
    old_grid: Sequence[int],
    new_grid: Sequence[int],
    *,
    mode: str = 'bicubic',
) -> Tensor:
    """Resize a position embedding (1, N, C) to (1, N', C), see `resize_grid`."""
    maps = pos_embed.unflatten(1, tuple(old_grid)).permute(0, 3, 1, 2)  # (1, C, H, W)
    maps = resize_grid(maps, new_grid, mode=mode)
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


def pos_embed_map(
    pos_embed: Tensor, old_grid: Sequence[int], grid: Sequence[int]
) -> Tensor:
    """Shape (1, N, C), made for `old_grid`, to (1, *grid, C)."""
    if tuple(grid) != tuple(old_grid):
        pos_embed = resize_pos_embed(pos_embed, old_grid, grid)
    return pos_embed.unflatten(1, tuple(grid))


def pos_embed_tokens(
    pos_embed: Tensor,
    old_grid: Sequence[int],
    grid: Sequence[int],
    num_special: int,
) -> Tensor:
    """Shape (1, num_special + N, C) to (1, num_special + H * W, C) for `grid` (H, W).

    Special tokens come first; theirs stay as they are.
    """
    if tuple(grid) == tuple(old_grid):
        return pos_embed
    special, patches = pos_embed[:, :num_special], pos_embed[:, num_special:]
    return torch.cat([special, resize_pos_embed(patches, old_grid, grid)], dim=1)


def fit_loaded_pos_embed(module: nn.Module, state_dict: dict, prefix: str, *args):
    """Hook before loading: resizes `pos_embed` of a square grid to `grid_size`.

    What the module's has beyond its grid stands first, for special tokens.
    """
    key = prefix + 'pos_embed'
    loaded = state_dict.get(key)
    if loaded is None or loaded.shape == module.pos_embed.shape:
        return
    num_special = module.pos_embed.shape[1] - prod(module.grid_size)
    num_patches = loaded.shape[1] - num_special
    side = isqrt(max(0, num_patches))
    if num_patches < 1 or side * side != num_patches:
        return  # load_state_dict reports the two shapes
    state_dict[key] = pos_embed_tokens(
        loaded, (side, side), module.grid_size, num_special
    )
