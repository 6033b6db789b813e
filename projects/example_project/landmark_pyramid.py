"""A backbone of your own on one of mmattn's operators.

It has four stages of blocks on `mmattn.ops.landmark_attention`. A config imports this
file with `custom_imports` and names the class by `type`.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops import landmark_attention


def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split (B, parts * C, H, W) into `parts` tensors of shape (B, N, M, D)."""
    x = x.flatten(2).transpose(1, 2)  # (B, N, parts * C)
    return x.unflatten(2, (parts, num_heads, -1)).unbind(2)


class LandmarkAttention(nn.Module):
    """Attend to average-pooled queries and keys, in linear time."""

    def __init__(self, embed_dims: int, num_heads: int, landmarks: int):
        super().__init__()
        self.num_heads, self.landmarks = num_heads, landmarks
        self.qkv = nn.Conv2d(embed_dims, 3 * embed_dims, 1)
        self.proj = nn.Conv2d(embed_dims, embed_dims, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        B, C, H, W = x.shape
        qkv = self.qkv(x)
        side = min(self.landmarks, H), min(self.landmarks, W)
        pooled = F.adaptive_avg_pool2d(qkv[:, : 2 * C], side)
        out = landmark_attention(
            *split_heads(qkv, 3, self.num_heads),
            *split_heads(pooled, 2, self.num_heads),
        )  # (B, N, M, D)
        return self.proj(out.flatten(2).transpose(1, 2).reshape(B, C, H, W))


class Block(nn.Module):
    """Attention and MLP, each after a norm and around a residual."""

    def __init__(self, embed_dims: int, num_heads: int, landmarks: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(1, embed_dims)
        self.attention = LandmarkAttention(embed_dims, num_heads, landmarks)
        self.norm2 = nn.GroupNorm(1, embed_dims)
        self.mlp = nn.Sequential(
            nn.Conv2d(embed_dims, 4 * embed_dims, 1),
            nn.GELU(),
            nn.Conv2d(4 * embed_dims, embed_dims, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


@MODELS.register_module()
class LandmarkPyramid(BaseModule):
    """Return maps at strides 4, 8, 16 and 32 of images of any size.

    Args:
        embed_dims: channels of the stages; each a multiple of `head_width`.
        depths: blocks of the stages.
        head_width: channels D of a head.
        landmarks: side of the grid of landmarks.
        init_cfg: as in every mm model; for example a checkpoint to start from.
    """

    def __init__(
        self,
        embed_dims: Sequence[int] = (32, 64, 128, 256),
        depths: Sequence[int] = (1, 1, 2, 1),
        head_width: int = 32,
        landmarks: int = 7,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        if any(width % head_width for width in embed_dims):
            raise UserError(
                f'embed_dims must be multiples of head_width={head_width}, '
                f'got {tuple(embed_dims)}'
            )
        self.stem = nn.Conv2d(3, embed_dims[0], 3, stride=2, padding=1)
        self.stages = nn.ModuleList()
        previous = embed_dims[0]
        for width, depth in zip(embed_dims, depths, strict=True):
            down = nn.Conv2d(previous, width, 3, stride=2, padding=1)
            blocks = (
                Block(width, width // head_width, landmarks) for _ in range(depth)
            )
            self.stages.append(nn.Sequential(down, *blocks))
            previous = width

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, 3, H, W) to four maps (B, C, H / stride, W / stride)."""
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return tuple(maps)
