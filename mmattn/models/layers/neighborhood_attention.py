"""Neighborhood attention: each query sees a whole window, shifted at the borders.

Small maps go through tiles. On larger ones a stencil takes less memory; it clips
windows, so tiles replace what it computes at the borders.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.ops import masked_attention
from mmattn.ops.backend import is_autocast_on
from mmattn.ops.neighborhood_attention.tiles import attend_part

from .pointwise import PointwiseLinear

TILED_PIXELS = 2048  # up to which a map is small


class NeighborhoodAttention(nn.Module):
    """Multi-head attention of each pixel to the K x K pixels nearest to it.

    From "Neighborhood Attention Transformer", https://arxiv.org/abs/2204.07143,
    equations 1 to 4, with the parameters of its `NeighborhoodAttention2D`. A map
    smaller than the window is padded right and below with zeros, which are pixels like
    others to the queries, as in DAT++'s official code.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        kernel_size: width K of the window, odd, at least 3.
        backend: backend of `ops.masked_attention`, through which large maps go; None
            takes the fastest.

    Raises:
        ValueError: heads that do not divide C, or an even window.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        *,
        kernel_size: int = 7,
        backend: str | None = None,
    ):
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(
                f'{embed_dims} channels do not split into {num_heads} heads'
            )
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise ValueError(
                f'kernel_size must be odd and at least 3, got {kernel_size}'
            )
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.backend = backend
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.proj = PointwiseLinear(embed_dims, embed_dims)
        side = 2 * kernel_size - 1
        self.rpb = nn.Parameter(torch.empty(num_heads, side, side))
        nn.init.trunc_normal_(self.rpb, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, H, W, C) in and out."""
        H, W = x.shape[1:3]
        K = self.kernel_size
        if min(H, W) < K:
            x = F.pad(x, (0, 0, 0, max(0, K - W), 0, max(0, K - H)))
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        out = neighborhood_attention(*qkv.unbind(3), self.rpb, backend=self.backend)
        return self.proj(out[:, :H, :W].flatten(3))

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, kernel_size={self.kernel_size}'


def neighborhood_attention(
    q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, *, backend: str | None = None
) -> Tensor:
    """Attention to the window of K x K pixels around each query.

    At a border the window is shifted into the map, so each query has K * K keys. B
    batch, H and W the map, both at least K, M heads, D head width.

    Args:
        q, k, v: shape (B, H, W, M, D).
        rpb: relative position bias, shape (M, 2 K - 1, 2 K - 1), added to the scaled
            scores: `rpb[:, K - 1 + y_k - y_q, K - 1 + x_k - x_q]`.
        backend: see `NeighborhoodAttention`.

    Returns:
        Shape (B, H, W, M, D).
    """
    device_type = q.device.type
    if is_autocast_on(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        q, k, v = (x.to(dtype) for x in (q, k, v))
    H, W = q.shape[1:3]
    if H * W <= TILED_PIXELS:
        return attend_part(q, k, v, rpb, 'map')
    K = (rpb.shape[1] + 1) // 2
    R = K // 2
    center = slice(K - 1 - R, K + R)
    middle = masked_attention(
        *(x.flatten(1, 2) for x in (q, k, v)),
        (H, W),
        kernel_size=K,
        bias=rpb[:, center, center],
        mask_fill='neg_inf',
        backend=backend,
    ).unflatten(1, (H, W))[:, R : H - R, R : W - R]
    left, right = attend_part(q, k, v, rpb, 'columns').split(R, dim=2)
    top, bottom = attend_part(q, k, v, rpb, 'rows').split(R, dim=1)
    middle = torch.cat([left, middle, right], dim=2)
    return torch.cat([top, middle, bottom], dim=1)
