"""The layer of neighborhood attention: projections around the operator."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops import neighborhood_attention

from .pointwise import PointwiseLinear


class NeighborhoodAttention(nn.Module):
    """Multi-head attention of each pixel to the K x K pixels nearest to it.

    From "Neighborhood Attention Transformer", https://arxiv.org/abs/2204.07143,
    equations 1 to 4, with the parameters of its `NeighborhoodAttention2D`. A map
    smaller than the window is padded right and below with zeros. Queries attend to them
    as to other pixels, as in DAT++'s official code.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        kernel_size: width K of the window, odd, at least 3.
        backend: backend of `ops.neighborhood_attention`; None takes the fastest.

    Raises:
        ValueError: heads do not divide C, or the window is even or too small.
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
            raise UserError(
                f'{embed_dims} channels do not split into {num_heads} heads'
            )
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise UserError(
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

    def no_weight_decay(self) -> set[str]:
        return {'rpb'}

    def forward(self, x: Tensor) -> Tensor:
        """Take and return a map of shape (B, H, W, C)."""
        H, W = x.shape[1:3]
        K = self.kernel_size
        if min(H, W) < K:
            x = F.pad(x, (0, 0, 0, max(0, K - W), 0, max(0, K - H)))
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        out = neighborhood_attention(*qkv.unbind(3), self.rpb, backend=self.backend)
        return self.proj(out[:, :H, :W].flatten(3))

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, kernel_size={self.kernel_size}'
