"""IViT: convolution blocks, then interactive attention, in a MetaFormer frame.

Kang, Yang and Ryu, "Interactive Multi-Head Self-Attention with Linear Complexity",
https://arxiv.org/abs/2402.17507, section 3.3 and Table 1. No official code is known.
The frame is that of CAFormer (Yu et al., "MetaFormer Baselines for Vision",
https://arxiv.org/abs/2210.13452).

The paper gives depths, channels, heads, the types of the four stages, an MLP ratio of 4
and 49 landmarks. The rest is inferred, since it reproduces the paper's parameter and
FLOP tables: the CAFormer frame without biases, residual scales in stages 3 and 4, the
3x3 kernel of the convolution blocks, and the inside of `InteractiveAttention`.

Channels come last inside the network, so linear layers and layer norms need no copies
and depthwise convolutions see PyTorch's channels_last memory format.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mmattn.models.layers import (
    DropPath,
    InteractiveAttention,
    PointwiseLinear,
    SeparableConv,
    StarReLU,
)
from mmattn.registry import MODELS

from .base_backbone import presets
from .pyramid import Pyramid


class Mlp(nn.Sequential):
    """Linear layers without biases around a StarReLU."""

    def __init__(self, embed_dims: int, mlp_ratio: int = 4):
        hidden_dims = mlp_ratio * embed_dims
        super().__init__(
            PointwiseLinear(embed_dims, hidden_dims, bias=False),
            StarReLU(),
            PointwiseLinear(hidden_dims, embed_dims, bias=False),
        )


def layer_norm(embed_dims: int) -> nn.LayerNorm:
    return nn.LayerNorm(embed_dims, eps=1e-6, bias=False)


class MetaFormerBlock(nn.Module):
    """Block that computes `x = s1 x + mixer(norm x)`, then `x = s2 x + mlp(norm x)`."""

    def __init__(
        self, embed_dims: int, mixer: nn.Module, drop_path: float, scale_residual: bool
    ):
        super().__init__()
        self.norm1 = layer_norm(embed_dims)
        self.mixer = mixer
        self.norm2 = layer_norm(embed_dims)
        self.mlp = Mlp(embed_dims)
        self.drop_path = DropPath(drop_path)
        for name in ('scale1', 'scale2'):
            scale = nn.Parameter(torch.ones(embed_dims)) if scale_residual else None
            self.register_parameter(name, scale)

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.scale1 is None else self.scale1 * x
        x = residual + self.drop_path(self.mixer(self.norm1(x)))
        residual = x if self.scale2 is None else self.scale2 * x
        return residual + self.drop_path(self.mlp(self.norm2(x)))


class Downsampling(nn.Module):
    """Strided convolution with a norm before it or, in the stem, after it.

    Channels come last.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int,
        stride: int,
        padding: int,
        norm_first: bool,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding)
        self.norm = layer_norm(in_channels if norm_first else out_channels)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = self.norm(x)
        x = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # (B, H, W, C)
        return x if self.norm_first else self.norm(x)


@MODELS.register_module()
class IViT(Pyramid):
    """Interactive Vision Transformer.

    Args:
        arch: 'nano' (ours, for demos and tests), 'tiny', 'small', 'base', or a dict
            with `embed_dims` (4), `depths` (4) and `num_heads` (of stages 3 and 4).
        out_indices: stages whose maps are returned, 0 to 3.
        out_norm: see `Pyramid`. Classification sets it to False, since its head norms
            after pooling.
        landmarks: side of the landmark grid; 7 gives the paper's 49 landmarks. The
            paper's FLOPs of segmentation fit 14.
        interact_expand, local_kernel, gate: see `InteractiveAttention`; equation 7 as
            printed is `interact_expand=1, local_kernel=None, gate=False`.
        conv_kernel: depthwise kernel of the convolution blocks in stages 1 and 2.
        backend: backend of the operator; None takes the fastest.
        in_channels, drop_path_rate, frozen_stages, with_cp, compile, init_cfg: see
            `Pyramid`.

    Forward:
        Takes images (B, 3, H, W) of 32 or more pixels a side and returns a tuple of
        maps (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32. Smaller images work while
        every stage keeps a pixel.

    Raises:
        ValueError: unknown arch, stage index or operator setting.
    """

    stem_conv = 'downsamplings.0.conv'
    min_side = 3  # the stem's kernel of 7, less its padding
    arch_zoo = presets(
        ('embed_dims', 'depths', 'num_heads'),
        {
            'nano': ((32, 64, 160, 256), (2, 2, 6, 2), (5, 8)),
            'tiny': ((64, 128, 320, 512), (3, 3, 9, 3), (10, 16)),
            'small': ((64, 128, 320, 512), (3, 12, 18, 3), (10, 16)),
            'base': ((96, 192, 384, 576), (3, 12, 18, 3), (12, 18)),
        },
    )

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        out_indices: int | tuple[int, ...] = (0, 1, 2, 3),
        out_norm: bool = True,
        frozen_stages: int = -1,
        with_cp: bool = False,
        landmarks: int = 7,
        interact_expand: int | None = 2,
        local_kernel: int | None = 7,
        gate: bool = True,
        conv_kernel: int = 3,
        backend: str | None = None,
        compile: bool | Mapping = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(arch, out_indices, with_cp, compile, init_cfg, in_channels)
        arch = self.arch
        embed_dims = arch['embed_dims']

        def mixer(stage: int) -> nn.Module:
            if stage < 2:
                return SeparableConv(embed_dims[stage], conv_kernel)
            return InteractiveAttention(
                embed_dims[stage],
                arch['num_heads'][stage - 2],
                landmarks=landmarks,
                interact_expand=interact_expand,
                local_kernel=local_kernel,
                gate=gate,
                backend=backend,
            )

        def downsample(stage: int) -> nn.Module:
            return Downsampling(
                in_channels if stage == 0 else embed_dims[stage - 1],
                embed_dims[stage],
                kernel_size=7 if stage == 0 else 3,
                stride=4 if stage == 0 else 2,
                padding=2 if stage == 0 else 1,
                norm_first=stage > 0,
            )

        def block(stage: int, index: int, drop_path: float) -> nn.Module:
            return MetaFormerBlock(
                embed_dims[stage], mixer(stage), drop_path, scale_residual=stage >= 2
            )

        stages = self.build_layers(downsample, block, drop_path_rate)
        self.downsamplings = nn.ModuleList(stage.downsample for stage in stages)
        self.blocks = nn.ModuleList(stage.blocks for stage in stages)
        self.out_norms = self.build_out_norms(layer_norm, out_norm)
        self.init_parameters(self.downsamplings[0].conv)
        self.freeze(frozen_stages)

    def level_lists(self):
        return [self.downsamplings, self.blocks]

    def parts(self):
        return list(zip(self.downsamplings, self.blocks, strict=True))
