"""PVT v2: PVT with overlapping patches and convolutions in place of positions.

Wang et al., "PVT v2: Improved Baselines with Pyramid Vision Transformer",
https://arxiv.org/abs/2106.13797. Official code: https://github.com/whai362/PVT,
Apache-2.0. Parameters have the names of timm's `pvt_v2`, except for the `stem`.

Depths follow the official code, which give its parameters; the paper's Table 1
prints another one for stage 2 of b2 and b3. As there, the norms of blocks and stages
have an epsilon of 1e-6, and the norms of patches and reduced maps 1e-5.

The encoders of SegFormer, Mix Transformers, are PVT v2 with an MLP ratio of 4: Xie et
al., "SegFormer: Simple and Efficient Design for Semantic Segmentation with
Transformers", https://arxiv.org/abs/2105.15203. Widths and heads follow its
Table 6, depths and MLP ratios its code, https://github.com/NVlabs/SegFormer,
and of transformers. The table prints 3 blocks in stage 2 of b2 and b3, and ratios of 8
in stages 1 and 2 of b0 to b4. The license of the published weights, NVIDIA's, allows
non-commercial use alone.

Channels come last inside the network.
"""

from collections.abc import Mapping
from functools import partial
from math import sqrt

from torch import Tensor, nn

from mmattn.models.layers import (
    DepthwiseConv,
    DropPath,
    GridConv,
    LinearSpatialReductionAttention,
    PointwiseLinear,
    PointwiseMlp,
    SpatialReductionAttention,
    init_linear_and_conv,
    init_stem_bias,
)
from mmattn.models.layers.strips import convolve_by_strips
from mmattn.ops.common.recompute import recomputed
from mmattn.registry import MODELS
from mmattn.weights.layouts.pvt import (
    convert_known_layouts,
    convert_state_dict,
    layout_of,
    to_official_state_dict,
)

from .base_backbone import BaseBackbone

__all__ = ['PVTv2', 'convert_state_dict', 'layout_of', 'to_official_state_dict']

EPSILON = 1e-6


class Block(nn.Module):
    """Attention and MLP behind norms, with residuals.

    The shape is (B, H, W, C) in and out, or (B, N, C) if its parts take that.
    """

    def __init__(
        self,
        embed_dims: int,
        attn: nn.Module,
        mlp: nn.Module,
        drop_path: float,
        eps: float = EPSILON,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims, eps=eps)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    """Strided convolution, with the settings `conv`, and norm; channels come last."""

    def __init__(
        self, in_channels: int, embed_dims: int, *, eps: float = 1e-5, **conv: int
    ):
        super().__init__()
        self.proj = GridConv(in_channels, embed_dims, **conv)
        self.norm = nn.LayerNorm(embed_dims, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x))


class ConvMlp(nn.Module):
    """MLP with a depthwise 3x3 convolution before its GELU; (B, H, W, C) in and out.

    Networks with linear attention also have a ReLU before the convolution.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        act_layer: type[nn.Module] = nn.GELU,
        relu: bool = False,
    ):
        super().__init__()
        self.fc1 = PointwiseLinear(embed_dims, hidden_dims)
        self.relu = nn.ReLU() if relu else nn.Identity()
        self.dwconv = DepthwiseConv(hidden_dims, 3)
        self.act = act_layer()
        self.fc2 = PointwiseLinear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        return convolve_by_strips(
            lambda x: self.relu(self.fc1(x)),
            self.dwconv,
            lambda x: self.fc2(recomputed(self.act, x)),
            x,
        )


def init_conv(module: nn.Module):
    """Draw normal weights of variance 2 / fan-out, and set biases to zero."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.weight[:, 0].numel() // module.groups
        nn.init.normal_(module.weight, std=sqrt(2 / fan_out))
        nn.init.zeros_(module.bias)


@MODELS.register_module()
class PVTv2(BaseBackbone):
    """Pyramid Vision Transformer v2, and the encoders of SegFormer.

    The published weights of SegFormer, also in mmsegmentation and on the Hugging Face
    hub, have NVIDIA's license: non-commercial use alone. This code is not theirs.

    Args:
        arch: 'b0' to 'b5', 'b2_li', 'mit_b0' to 'mit_b5' of SegFormer, or a dict with
            `embed_dims`, `depths`, `num_heads`, `mlp_ratios` and `sr_ratios` of the
            stages and `linear`: whether attention is to maps pooled to 7 x 7, which
            ignores `sr_ratios`.
        linear: attention to pooled maps; None takes the arch's.
        overlap: whether patches overlap, 7 x 7 at stride 4 and 3 x 3 at stride 2. PVT's
            are 4 x 4 and 2 x 2. They ignore pixels beyond a multiple of the stride, and
            images then need 32 or more pixels a side.
        conv_mlp: whether MLPs have a depthwise convolution. Without it, and without
            `overlap`, the network knows no positions, since it has no tables of them.
        in_channels, drop_path_rate, out_indices, frozen_stages, with_cp, compile,
            init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size and returns a tuple of maps (B, C_i, H_i,
        W_i), each after a layer norm, at strides 4, 8, 16 and 32, rounded up.

    Raises:
        ValueError: unknown arch or stage index.
    """

    arch_zoo = {
        'b0': dict(
            embed_dims=(32, 64, 160, 256),
            depths=(2, 2, 2, 2),
            num_heads=(1, 2, 5, 8),
            mlp_ratios=(8, 8, 4, 4),
            sr_ratios=(8, 4, 2, 1),
            linear=False,
        ),
        **{
            name: dict(
                embed_dims=(64, 128, 320, 512),
                depths=depths,
                num_heads=(1, 2, 5, 8),
                mlp_ratios=mlp_ratios,
                sr_ratios=(8, 4, 2, 1),
                linear=name == 'b2_li',
            )
            for name, depths, mlp_ratios in (
                ('b1', (2, 2, 2, 2), (8, 8, 4, 4)),
                ('b2', (3, 4, 6, 3), (8, 8, 4, 4)),
                ('b2_li', (3, 4, 6, 3), (8, 8, 4, 4)),
                ('b3', (3, 4, 18, 3), (8, 8, 4, 4)),
                ('b4', (3, 8, 27, 3), (8, 8, 4, 4)),
                ('b5', (3, 6, 40, 3), (4, 4, 4, 4)),
            )
        },
        **{
            name: dict(
                embed_dims=embed_dims,
                depths=depths,
                num_heads=(1, 2, 5, 8),
                mlp_ratios=(4, 4, 4, 4),
                sr_ratios=(8, 4, 2, 1),
                linear=False,
            )
            for name, embed_dims, depths in (
                ('mit_b0', (32, 64, 160, 256), (2, 2, 2, 2)),
                ('mit_b1', (64, 128, 320, 512), (2, 2, 2, 2)),
                ('mit_b2', (64, 128, 320, 512), (3, 4, 6, 3)),
                ('mit_b3', (64, 128, 320, 512), (3, 4, 18, 3)),
                ('mit_b4', (64, 128, 320, 512), (3, 8, 27, 3)),
                ('mit_b5', (64, 128, 320, 512), (3, 6, 40, 3)),
            )
        },
    }

    def __init__(
        self,
        arch: str | Mapping = 'b2',
        *,
        linear: bool | None = None,
        overlap: bool = True,
        conv_mlp: bool = True,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims, depths = arch['embed_dims'], arch['depths']
        super().__init__(embed_dims, **frame)
        linear = arch['linear'] if linear is None else linear

        def patch_embed(in_channels: int, channels: int, stride: int) -> PatchEmbed:
            conv = dict(kernel_size=stride, stride=stride)
            if overlap:
                conv = dict(conv, kernel_size=2 * stride - 1, padding=stride - 1)
            return PatchEmbed(in_channels, channels, **conv)

        def block(stage: int, drop_path: float) -> Block:
            channels, num_heads = embed_dims[stage], arch['num_heads'][stage]
            hidden_dims = arch['mlp_ratios'][stage] * channels
            if linear:
                attn = LinearSpatialReductionAttention(channels, num_heads)
            else:
                sr_ratio = arch['sr_ratios'][stage]
                attn = SpatialReductionAttention(channels, num_heads, sr_ratio)
            if conv_mlp:
                mlp = ConvMlp(channels, hidden_dims, relu=linear)
            else:
                mlp = PointwiseMlp(channels, hidden_dims)
            return Block(channels, attn, mlp, drop_path)

        self.stem = patch_embed(self.in_channels, embed_dims[0], 4)
        norm = partial(nn.LayerNorm, eps=EPSILON)
        self.build_stages(depths, partial(patch_embed, stride=2), block, norm)
        self.out_norms = nn.ModuleDict()  # each stage ends in a norm
        self.apply(init_linear_and_conv)
        self.apply(init_conv)
        init_stem_bias(self.stem)
        self.freeze()

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_known_layouts(weights)
