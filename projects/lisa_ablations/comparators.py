"""Operators of other papers in the place of LiSA, on a channels-last grid.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289, Table 3(a), compares LiSA
with them in the plain network. The places of projections, biases and norms are those
that reproduce the parameters and FLOPs of that table; the paper does not state them.
Lambda convolution and RSA have time quadratic in the number of tokens.
"""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import DepthwiseConv, PointwiseLinear
from mmattn.ops.common.precision import compute_dtype
from mmattn.ops.structure_aware_attention import (
    irfft_grid,
    l2_normalize,
    resize_half_spectrum,
    rfft_grid,
)

from .variants import Mixer, relative_matrices

HEAD_DIMS = 16
POOLED_SIDE = 14  # side of the map that convolutional attention attends to


class DepthwiseMixer(nn.Sequential):
    """Depthwise convolution of 7 x 7 pixels and projection."""

    def __init__(self, embed_dims: int):
        super().__init__(
            DepthwiseConv(embed_dims, 7, bias=False),
            PointwiseLinear(embed_dims, embed_dims, bias=False),
        )


class GlobalFilter(nn.Module):
    """Circular convolution of the whole grid, learned as half-spectra, and projection.

    Rao et al., "Global Filter Networks for Image Classification",
    https://arxiv.org/abs/2107.00645, equation 5. Filters of another grid are resized at
    run time and on load, as the authors' code does (bicubic, `resize_half_spectrum`).

    Args:
        embed_dims: channels C.
        grid: sides that the filters are made for, two or three.
    """

    def __init__(self, embed_dims: int, grid: Sequence[int]):
        super().__init__()
        filters = torch.empty(embed_dims, *grid[:-1], grid[-1] // 2 + 1, 2)
        self.weight = nn.Parameter(nn.init.normal_(filters, std=0.02))
        self.proj = PointwiseLinear(embed_dims, embed_dims, bias=False)
        self.grid = tuple(grid)
        self.register_load_state_dict_pre_hook(_fit_loaded_filters)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, *grid, C) in and out."""
        grid = tuple(x.shape[1:-1])
        maps = x.movedim(-1, 1).to(compute_dtype(x.dtype))  # (B, C, *grid)
        filters = self.weight.to(maps.dtype)
        filters = resize_half_spectrum(torch.view_as_complex(filters), grid)
        out = irfft_grid(rfft_grid(maps, grid) * filters, grid)
        return self.proj(out.movedim(1, -1).to(x.dtype))


def _fit_loaded_filters(module: GlobalFilter, state_dict: dict, prefix: str, *args):
    """Resize, before loading, the filters of another grid."""
    loaded = state_dict.get(prefix + 'weight')
    own = module.weight.shape
    if loaded is None or loaded.shape == own or loaded.dim() != len(own):
        return
    if (len(loaded), loaded.shape[-1]) == (own[0], 2):
        half = torch.view_as_complex(
            loaded.to(compute_dtype(loaded.dtype)).contiguous()
        )
        resized = torch.view_as_real(resize_half_spectrum(half, module.grid))
        state_dict[prefix + 'weight'] = resized.to(loaded.dtype)


class LambdaConvolution(Mixer):
    """Linear functions made of a context, by content and by position, for each query.

    Bello, "LambdaNetworks: Modeling Long-Range Interactions Without Attention",
    https://arxiv.org/abs/2102.08602, equations 1 and 2. The heads share the table of
    relative positions. Here, each head has keys and values of its own, and there is no
    projection after them.
    """

    def __init__(self, embed_dims: int, num_heads: int, grid: Sequence[int]):
        super().__init__(embed_dims, num_heads)
        self.proj = nn.Identity()
        self._draw_table('table', self.head_dims, grid=grid, std=0.02)

    def mix(self, q, k, v, grid):
        positions = relative_matrices(self.table, grid).to(v.dtype)
        by_content = torch.einsum('bjmk,bjmv->bmkv', k.softmax(1), v)
        by_position = torch.einsum('kij,bjmv->bimkv', positions, v)
        return torch.einsum('bimk,bimkv->bimv', q, by_position + by_content[:, None])


class ConvolutionalAttention(Mixer):
    """Softmax attention after a depthwise 3 x 3 convolution of q, k and v.

    The attention of Li et al., "MViTv2: Improved Multiscale Vision Transformers for
    Classification and Detection", https://arxiv.org/abs/2112.01526, without its
    position embeddings, norms and residual. On large grids, strides reduce the map of k
    and v to about 14 x 14.
    """

    def __init__(self, embed_dims: int, num_heads: int):
        super().__init__(embed_dims, num_heads, qkv_bias=True, proj_bias=True)
        kernel = dict(kernel_size=3, padding=1, groups=embed_dims, bias=False)
        self.convs = nn.ModuleList(
            nn.Conv2d(embed_dims, embed_dims, **kernel) for _ in range(3)
        )

    def mix(self, q, k, v, grid):
        strides = [max(1, side // POOLED_SIDE) for side in grid]
        q, k, v = (
            self._convolve(conv, x, grid, stride)
            for conv, x, stride in zip(
                self.convs, (q, k, v), (1, strides, strides), strict=True
            )
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    def _convolve(self, conv: nn.Conv2d, x: Tensor, grid, stride) -> Tensor:
        """Convolve tokens (B, N, M, D) to heads (B, M, N', D)."""
        maps = x.flatten(2).unflatten(1, grid).permute(0, 3, 1, 2)  # (B, C, H, W)
        maps = F.conv2d(maps, conv.weight, None, stride, 1, groups=conv.groups)
        return maps.flatten(2).unflatten(1, (self.num_heads, -1)).transpose(2, 3)


class InceptionMixer(nn.Module):
    """Convolution, pooling and attention in parallel, each of a part of the channels.

    Si et al., "Inception Transformer", https://arxiv.org/abs/2205.12956, equations 2 to
    7, without strides. Half of the heads, of 16 channels, attend. The other channels
    are halved: a convolution and a maximum over 3 x 3 pixels, each beside a projection
    that doubles the channels.

    Args:
        embed_dims: channels C; at least 16 for each head that attends, and an even
            number beside them.
        num_heads: heads M of the network.
    """

    def __init__(self, embed_dims: int, num_heads: int):
        super().__init__()
        self.num_heads = max(1, num_heads // 2)
        self.low_dims = low = HEAD_DIMS * self.num_heads
        high = embed_dims - low
        if high < 2 or high % 2:
            raise UserError(
                f'embed_dims must be {low} and an even number more for {num_heads} '
                f'heads, got {embed_dims}'
            )
        self.qkv = PointwiseLinear(low, 3 * low)
        self.conv_in = PointwiseLinear(high // 2, high, bias=False)
        self.conv = DepthwiseConv(high, 3, bias=False)
        self.pool_in = PointwiseLinear(high // 2, high)
        self.fuse = DepthwiseConv(low + 2 * high, 3, bias=False)
        self.proj = PointwiseLinear(low + 2 * high, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, H, W, C) in and out."""
        half = (x.shape[-1] - self.low_dims) // 2
        convolved, pooled, low = x.split([half, half, self.low_dims], dim=-1)
        convolved = F.gelu(self.conv(self.conv_in(convolved)))
        pooled = F.max_pool2d(pooled.permute(0, 3, 1, 2), 3, stride=1, padding=1)
        pooled = F.gelu(self.pool_in(pooled.permute(0, 2, 3, 1)))
        x = torch.cat([convolved, pooled, self._attend(low)], dim=-1)
        return self.proj(x + self.fuse(x))

    def _attend(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        qkv = self.qkv(x).view(B, H * W, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, M, N, D)
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(B, H, W, C)


class RelationalSelfAttention(Mixer):
    """Kernels and contexts made of relations, of the whole grid.

    Kim, Kwon, Wang, Kwak and Cho, "Relational Self-Attention: What's Missing in
    Attention for Video Understanding", https://arxiv.org/abs/2111.01673, as its code
    computes it (https://github.com/KimManjin/RSA): kernels basic and relational,
    contexts basic and relational. The heads share all kernels.

        p[k, i] = sum_c q[i, c] (sum_n H1[c, k, i, n] k[n, c] + P[c, k])
        z[v, i] = sum_k p[k, i] sum_n H2[k, i, n] v[n, v]
        y[w, i] = sum_v (sum_n G[w, i, n] v[n, v] + I[v, w]) z[v, i]

    with q, k and v normalized over the channels of a head. Here, each head has keys and
    values of its own.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        grid: sides that the tables are made for, two or three.
        patterns: latent channels K of the kernels.
    """

    def __init__(
        self, embed_dims: int, num_heads: int, grid: Sequence[int], *, patterns: int
    ):
        super().__init__(embed_dims, num_heads)
        D, std = self.head_dims, prod(grid) ** -0.5
        self._draw_table('table_h1', D, patterns, grid=grid, std=std)
        self._draw_table('table_h2', patterns, grid=grid, std=std)
        self._draw_table('table_g', D, grid=grid, std=std)
        self.kernel = self._draw(D, patterns, std=std)
        self.identity = nn.Parameter(torch.eye(D))

    def mix(self, q, k, v, grid):
        q, k, v = (l2_normalize(x) for x in (q, k, v))
        h1, h2, g = (
            relative_matrices(table, grid).to(v.dtype)
            for table in (self.table_h1, self.table_h2, self.table_g)
        )
        related = torch.einsum('bnmc,ckin->bimck', k, h1) + self.kernel
        p = torch.einsum('bimc,bimck->bimk', q, related)
        z = torch.einsum('bimk,bimvk->bimv', p, torch.einsum('bnmv,kin->bimvk', v, h2))
        context = torch.einsum('bnmv,win->bimvw', v, g) + self.identity
        return torch.einsum('bimv,bimvw->bimw', z, context)


# Functions of channels, heads, grid, patterns and the side of local kernels.
COMPARATORS = {
    'depthwise': lambda C, M, grid, K, R: DepthwiseMixer(C),
    'global_filter': lambda C, M, grid, K, R: GlobalFilter(C, grid),
    'lambda': lambda C, M, grid, K, R: LambdaConvolution(C, M, grid),
    'convolutional_attention': lambda C, M, grid, K, R: ConvolutionalAttention(C, M),
    'inception': lambda C, M, grid, K, R: InceptionMixer(C, M),
    'rsa': lambda C, M, grid, K, R: RelationalSelfAttention(C, M, grid, patterns=K),
}
