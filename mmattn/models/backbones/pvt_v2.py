"""PVT v2: PVT with overlapping patches and convolutions in place of positions.

Wang et al., "PVT v2: Improved Baselines with Pyramid Vision Transformer",
https://arxiv.org/abs/2106.13797. Official code: https://github.com/whai362/PVT,
Apache-2.0. Parameters have the names of timm's `pvt_v2`, except for `layers`.

Depths are those of the official code, which give its parameters; the paper's Table 1
prints another one for stage 2 of b2 and b3. As there, the norms of blocks and stages
have an epsilon of 1e-6, and those of patches and of reduced maps one of 1e-5.

Channels come last inside the network.
"""

from collections.abc import Mapping
from math import sqrt

from torch import Tensor, nn

from mmattn.models.checkpoints.pvt import (
    convert_state_dict,
    layout_of,
    take_any_layout,
    to_official_state_dict,
)
from mmattn.models.layers import (
    DepthwiseConv,
    LinearSpatialReductionAttention,
    PointwiseLinear,
    PointwiseMlp,
    SpatialReductionAttention,
)
from mmattn.registry import MODELS

from .pvt import EPSILON, PatchEmbed, PVTBlock
from .pyramid import Pyramid

__all__ = ['PVTv2', 'convert_state_dict', 'layout_of', 'to_official_state_dict']


class ConvMlp(nn.Module):
    """MLP with a depthwise 3x3 convolution before its GELU; (B, H, W, C) in and out.

    Networks with linear attention also have a ReLU before the convolution.
    """

    def __init__(self, embed_dims: int, hidden_dims: int, relu: bool):
        super().__init__()
        self.fc1 = PointwiseLinear(embed_dims, hidden_dims)
        self.relu = nn.ReLU() if relu else nn.Identity()
        self.dwconv = DepthwiseConv(hidden_dims, 3)
        self.act = nn.GELU()
        self.fc2 = PointwiseLinear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.dwconv(self.relu(self.fc1(x)))))


def init_conv(module: nn.Module):
    """Draw normal weights of variance 2 / fan-out, and set biases to zero."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.weight[:, 0].numel() // module.groups
        nn.init.normal_(module.weight, std=sqrt(2 / fan_out))
        nn.init.zeros_(module.bias)


@MODELS.register_module()
class PVTv2(Pyramid):
    """Pyramid Vision Transformer v2.

    Args:
        arch: 'b0' to 'b5', 'b2-li', or a dict with `embed_dims`, `depths`, `num_heads`,
            `mlp_ratios` and `sr_ratios` of the stages and `linear`: whether attention
            is to maps pooled to 7 x 7, which ignores `sr_ratios`.
        linear: attention to pooled maps; None takes the arch's.
        overlap: whether patches overlap, 7 x 7 at stride 4 and 3 x 3 at stride 2. PVT's
            are 4 x 4 and 2 x 2. They ignore pixels beyond a multiple of the stride, and
            images then need 32 or more pixels a side.
        conv_mlp: whether MLPs have a depthwise convolution. Without it, and without
            `overlap`, the network knows no positions, since it has no tables of them.
        in_channels, drop_path_rate, out_indices, frozen_stages, with_cp, compile,
            init_cfg: see `Pyramid`.

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
                linear=name == 'b2-li',
            )
            for name, depths, mlp_ratios in (
                ('b1', (2, 2, 2, 2), (8, 8, 4, 4)),
                ('b2', (3, 4, 6, 3), (8, 8, 4, 4)),
                ('b2-li', (3, 4, 6, 3), (8, 8, 4, 4)),
                ('b3', (3, 4, 18, 3), (8, 8, 4, 4)),
                ('b4', (3, 8, 27, 3), (8, 8, 4, 4)),
                ('b5', (3, 6, 40, 3), (4, 4, 4, 4)),
            )
        },
    }

    def __init__(
        self,
        arch: str | Mapping = 'b2',
        *,
        in_channels: int = 3,
        linear: bool | None = None,
        overlap: bool = True,
        conv_mlp: bool = True,
        drop_path_rate: float = 0.0,
        out_indices: int | tuple[int, ...] | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        compile: bool | Mapping = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(arch, out_indices, with_cp, compile, init_cfg, in_channels)
        arch = self.arch
        embed_dims = arch['embed_dims']
        linear = arch['linear'] if linear is None else linear

        def attention(stage: int) -> nn.Module:
            shape = embed_dims[stage], arch['num_heads'][stage]
            if linear:
                return LinearSpatialReductionAttention(*shape)
            return SpatialReductionAttention(*shape, arch['sr_ratios'][stage])

        def block(stage: int, index: int, drop_path: float) -> nn.Module:
            channels = embed_dims[stage]
            hidden_dims = arch['mlp_ratios'][stage] * channels
            mlp = (
                ConvMlp(channels, hidden_dims, relu=linear)
                if conv_mlp
                else PointwiseMlp(channels, hidden_dims)
            )
            return PVTBlock(channels, attention(stage), mlp, drop_path)

        def downsample(stage: int) -> nn.Module | None:
            if stage == 0:
                return None
            shape = embed_dims[stage - 1 : stage + 1]
            return PatchEmbed(*shape, **patches(2))

        def patches(stride: int) -> dict[str, int]:
            if not overlap:
                return dict(kernel_size=stride, stride=stride)
            return dict(kernel_size=2 * stride - 1, stride=stride, padding=stride - 1)

        self.patch_embed = PatchEmbed(in_channels, embed_dims[0], **patches(4))
        self.layers = self.build_layers(downsample, block, drop_path_rate)
        for layer, channels in zip(self.layers, embed_dims, strict=False):
            layer.norm = nn.LayerNorm(channels, eps=EPSILON)
        self.out_norms = self.build_out_norms(nn.LayerNorm, out_norm=False)
        self.init_parameters(self.patch_embed.proj, init_conv)
        self.register_load_state_dict_pre_hook(take_any_layout)
        self.freeze(frozen_stages)

    def stages(self):
        stem, *stages = super().stages()
        norms = [layer.norm for layer in self.layers]
        return [
            stem,
            *([*stage, norm] for stage, norm in zip(stages, norms, strict=True)),
        ]

    def ends_in_norm(self):
        return True

    def end_stage(self, x: Tensor, stage: int) -> Tensor:
        return self.layers[stage].norm(x)
