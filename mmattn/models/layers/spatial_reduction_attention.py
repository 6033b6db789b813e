"""Attention to a reduced map: PVT's, and the linear one of PVT v2."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops.common.adaptive_pool import adaptive_avg_pool
from mmattn.ops.common.derivatives import runs_eagerly
from mmattn.ops.common.pointwise_linear import NARROW_BLAS

from .dense_attention import dense_attention
from .grid_conv import GridConv
from .pointwise import PointwiseLinear

POOLED_SIDE = 7  # side of the map that linear attention attends to
MAX_PATCH_SIDE = 4  # copying larger patches can take as long as a product saves


class SpatialReductionAttention(nn.Module):
    """Queries from every token, keys and values from a map reduced R times a side.

    Wang et al., "Pyramid Vision Transformer", https://arxiv.org/abs/2102.12122,
    equations 3 to 5. The paper's Reshape and projection are a convolution whose kernel
    and stride are R. As in the official code, pixels beyond a multiple of R give no
    key. A side shorter than R is padded with zeros.

    Args:
        embed_dims: channels C.
        num_heads: heads M, a divisor of C.
        sr_ratio: R; 1 is plain attention, without the reduction and its norm.

    Forward:
        Shape (B, H, W, C) in and out; also (B, N, C) if R is 1.
    """

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int = 1):
        super().__init__()
        if embed_dims % num_heads:
            raise UserError(
                f'embed_dims must be a multiple of num_heads, got {embed_dims} and '
                f'{num_heads}'
            )
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.q = PointwiseLinear(embed_dims, embed_dims)
        self.kv = PointwiseLinear(embed_dims, 2 * embed_dims)
        self.proj = PointwiseLinear(embed_dims, embed_dims)
        if sr_ratio > 1:
            self.sr = GridConv(embed_dims, embed_dims, sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        M = self.num_heads
        q = self.q(x).flatten(1, -2).unflatten(-1, (M, -1))
        kv = self.kv(self.reduce(x)).flatten(1, -2).unflatten(-1, (2 * M, -1))
        out = dense_attention(q, *kv.chunk(2, dim=2), x.shape[1:-1])
        return self.proj(out.reshape(x.shape))

    def reduce(self, x: Tensor) -> Tensor:
        """Reduce (B, H, W, C) to the map (B, h, w, C) that keys are made of."""
        if self.sr_ratio == 1:
            return x
        H, W = x.shape[1:3]
        if H < self.sr_ratio or W < self.sr_ratio:
            pad_h, pad_w = (max(0, self.sr_ratio - side) for side in (H, W))
            x = F.pad(x, (0, 0, 0, pad_w, 0, pad_h))
        if torch.is_grad_enabled() and self._is_faster_as_product(x):
            return self.norm(_convolve_patches(self.sr, x))
        return self.norm(self.sr(x))

    def _is_faster_as_product(self, x: Tensor) -> bool:
        """Return whether gradients follow on a CPU whose BLAS is as fast as oneDNN."""
        return (
            self.sr_ratio <= MAX_PATCH_SIDE
            and x.device.type == 'cpu'
            and x.dtype == torch.float32
            and self.sr.weight.requires_grad
            and runs_eagerly(x, self.sr.weight)
            and not torch.is_autocast_enabled('cpu')
            and not NARROW_BLAS
        )


def _convolve_patches(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a convolution whose stride is its kernel to (B, H, W, C), as a product."""
    B, H, W, C = x.shape
    R = conv.stride[0]
    h, w = H // R, W // R
    patches = x[:, : h * R, : w * R].unflatten(2, (w, R)).unflatten(1, (h, R))
    patches = patches.transpose(2, 3).reshape(B, h, w, R * R * C)
    weight = conv.weight.permute(0, 2, 3, 1).flatten(1)
    return F.linear(patches, weight, conv.bias)


class LinearSpatialReductionAttention(SpatialReductionAttention):
    """Keys and values from a map pooled to 7 x 7, whatever its size.

    Wang et al., "PVT v2: Improved Baselines with Pyramid Vision Transformer",
    https://arxiv.org/abs/2106.13797, section 3.2; the 1x1 convolution, the norm and the
    GELU after the pooling are the official code's.
    """

    def __init__(self, embed_dims: int, num_heads: int):
        super().__init__(embed_dims, num_heads)
        self.sr = GridConv(embed_dims, embed_dims, 1)
        self.norm = nn.LayerNorm(embed_dims)

    def reduce(self, x: Tensor) -> Tensor:
        pooled = adaptive_avg_pool(x, (POOLED_SIDE, POOLED_SIDE))
        return F.gelu(self.norm(self.sr(pooled)))
