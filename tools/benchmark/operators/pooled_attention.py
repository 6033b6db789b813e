"""The convolutional attention of MViTv2, https://arxiv.org/abs/2112.01526.

Without a pooling of q, which with a stride of 1 would be one more convolution: so its
FLOPs are those of the LiSA paper's tables at all five sizes.
"""

import torch
from torch import Tensor, nn

from mmattn.models.layers import PointwiseLinear

POOLED_SIDE = 14  # of the keys, where the map is not smaller


class Pool(nn.Module):
    """Apply a strided depthwise 3 x 3 convolution shared by heads, and a norm."""

    def __init__(self, head_dims: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(
            head_dims, head_dims, 3, stride, 1, groups=head_dims, bias=False
        )
        self.norm = nn.LayerNorm(head_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Pool (B, H, W, M, D) to (B, M, h, w, D)."""
        B, _, _, M, _ = x.shape
        x = self.conv(x.permute(0, 3, 4, 1, 2).flatten(0, 1))  # (B M, D, h, w)
        return self.norm(x.unflatten(0, (B, M)).permute(0, 1, 3, 4, 2))


class RelativePositions(nn.Module):
    """Look up embeddings (side, pooled side, D) of the offsets along one axis."""

    def __init__(self, head_dims: int, side: int, stride: int):
        super().__init__()
        last = (side - 1) // stride  # key of the axis
        offsets = torch.arange(side)[:, None] + stride * (last - torch.arange(last + 1))
        self.register_buffer('offsets', offsets, persistent=False)
        self.table = nn.Parameter(torch.empty(int(offsets.max()) + 1, head_dims))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self) -> Tensor:
        return self.table[self.offsets]


class PooledAttention(nn.Module):
    """Attend to pooled keys and values; shape (B, H, W, C) in and out.

    Scores get decomposed relative positions, and the output q, as in MViTv2.
    """

    def __init__(self, embed_dims: int, num_heads: int, side: int):
        super().__init__()
        head_dims = embed_dims // num_heads
        stride = max(1, side // POOLED_SIDE)
        self.num_heads = num_heads
        self.scale = head_dims**-0.5
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.pools = nn.ModuleList(Pool(head_dims, stride) for _ in range(2))
        self.positions = nn.ModuleList(
            RelativePositions(head_dims, side, stride) for _ in range(2)
        )
        self.proj = PointwiseLinear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, _ = x.shape
        qkv = self.qkv(x).view(B, H, W, 3, self.num_heads, -1).unbind(3)
        q = qkv[0].permute(0, 3, 1, 2, 4)  # (B, M, H, W, D)
        k, v = (pool(x) for pool, x in zip(self.pools, qkv[1:], strict=True))
        rows, columns = (position() for position in self.positions)
        rows = torch.einsum('bmhwd,hkd->bmhwk', q, rows).unsqueeze(-1)
        columns = torch.einsum('bmhwd,wkd->bmhwk', q, columns).unsqueeze(-2)
        pooled = k.shape[2:4]
        q, k, v = (x.flatten(2, 3) for x in (q, k, v))  # (B, M, N, D)
        attn = (self.scale * q) @ k.transpose(-2, -1)
        attn = attn.unflatten(-1, pooled).unflatten(2, (H, W)) + rows + columns
        attn = attn.flatten(4).flatten(2, 3).softmax(dim=-1)
        out = attn @ v + q
        return self.proj(out.transpose(1, 2).reshape(x.shape))
