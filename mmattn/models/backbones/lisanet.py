"""LiSANet and HyLiSANet: structure-aware attention on plain and pyramid grids.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289, section 4 and Tables 2 and
11. No official code is known. The pyramid's patch embeddings and MLPs are those of
PVTv2 (Wang et al., https://arxiv.org/abs/2106.13797), its conv position embeddings
those of UniFormer (Li et al., https://arxiv.org/abs/2201.09450).

The paper gives depths, channels, heads of 16 channels, patterns, MLP ratios and the
types of the stages. The inside of the convolution blocks, the places of biases and the
layout of the heads are inferred, since they reproduce the paper's parameter and FLOP
tables. The tables decide neither the activation nor whether each block has a conv
position embedding.

Channels come last inside the network, as in `IViT`.
"""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import (
    DepthwiseConv,
    DropPath,
    PointwiseLinear,
    PointwiseMlp,
    SeparableConv,
    StarReLU,
    StructureAwareAttention,
    fit_on_load,
    grid_of,
    pad_to_patches,
    pos_embed_map,
)
from mmattn.models.layers.structure_aware.comparators import COMPARATORS
from mmattn.models.layers.structure_aware.variants import VARIANTS, SelfAttention
from mmattn.registry import MODELS

from .base_backbone import NO_WEIGHT_DECAY, presets
from .pyramid import Pyramid

MIXERS = VARIANTS | COMPARATORS
HEAD_DIMS = 16
PATCH_SIZE = 16  # in the paper's plain network
ACTIVATIONS = {'gelu': nn.GELU, 'star_relu': StarReLU}


class ConvMlp(nn.Sequential):
    """MLP with a depthwise convolution before its activation."""

    def __init__(self, embed_dims: int, hidden_dims: int, act_layer: type[nn.Module]):
        super().__init__(
            PointwiseLinear(embed_dims, hidden_dims),
            DepthwiseConv(hidden_dims, 3),
            act_layer(),
            PointwiseLinear(hidden_dims, embed_dims),
        )


def layer_norm(embed_dims: int) -> nn.LayerNorm:
    return nn.LayerNorm(embed_dims, eps=1e-6)


class LiSABlock(nn.Module):
    """Conv position embedding, if any, mixer and MLP, with residuals."""

    def __init__(
        self,
        embed_dims: int,
        position: nn.Module | None,
        mixer: nn.Module,
        mlp: nn.Module,
        drop_path: float,
    ):
        super().__init__()
        self.position = position
        self.norm1 = layer_norm(embed_dims)
        self.mixer = mixer
        self.norm2 = layer_norm(embed_dims)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        if self.position is not None:
            x = x + self.position(x)
        x = x + self.drop_path(self.mixer(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    """Strided convolution, with the settings `conv`, and, in a pyramid, a norm.

    Channels come last.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, *, norm: bool = True, **conv: int
    ):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, embed_dims, **conv)
        self.norm = layer_norm(embed_dims) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # (B, H, W, C)
        return self.norm(x)


@MODELS.register_module()
class LiSANet(Pyramid):
    """Lightweight structure-aware attention network.

    Args:
        arch: 'isotropic' (one stage of stride 16), 'small', 'base', 'hybrid-small',
            'hybrid-base' (HyLiSANet, with convolution blocks in stages 1 and 2),
            'hybrid-nano' (ours, for demos and tests), or a dict with `embed_dims`,
            `depths` and `mlp_ratios` of each stage, `conv_stages` (number of stages of
            convolution blocks) and `patterns` (K). A network of one stage is plain: it
            has a position embedding and no convolutions in its blocks.
        mixer: mixer of the blocks that are no convolution blocks. 'lisa' is
            `StructureAwareAttention`. The others are the ablations of the paper's Table
            3 and the operators that it compares LiSA with, see `variants` and
            `comparators` in `mmattn.models.layers.structure_aware`. Only the plain
            network supports them.
        embed_dims: channels of the plain network; None takes the arch's.
        num_heads: heads of the plain network; None gives one to 16 channels.
        patch_size: side of a patch of the plain network; None is the paper's 16.
        img_size: image side, or (height, width), that kernels and position embedding
            are made for. They are resized for other sizes, at run time and on load.
        patterns: structural patterns K; None takes the arch's.
        kernel_resize: 'zero_embed' (taps keep their distance in pixels), 'stretch',
            'spectral' or 'gfnet' (GFNet's, which the paper cites for 384 pixels), see
            `ops.circular_kernel_spectrum`.
        local_kernel: side of the kernels of mixer 'local'; 3, 5 or 7 in the paper.
        activation: activation of all MLPs and convolution blocks, 'gelu' or
            'star_relu'.
        kernel_domain, qkv_bias, proj_bias, fft_dims, cache_size, backend: settings of
            mixer 'lisa', see `StructureAwareAttention`. At 384 pixels, kernels in the
            domain 'frequency' have the parameters that the paper prints.
        in_channels, drop_path_rate, out_indices, out_norm, frozen_stages, with_cp,
            compile, init_cfg: see `Pyramid`.

    Forward:
        Takes images (B, 3, H, W) of any size (the plain network pads right and below to
        whole patches) and returns a tuple of maps (B, C_i, H_i, W_i) at strides 4, 8,
        16 and 32, or `patch_size` for the plain network.

    Raises:
        ValueError: unknown arch, mixer, stage index or setting.
    """

    stem_conv = 'patch_embeds.0.conv'
    arch_zoo = presets(
        ('embed_dims', 'depths', 'mlp_ratios', 'conv_stages', 'patterns'),
        {
            'hybrid-nano': ((32, 64, 160, 256), (2, 2, 6, 2), (4, 4, 3, 3), 2, 8),
            'isotropic': ((192,), (12,), (4,), 0, 16),
            'small': ((64, 128, 320, 384), (2, 4, 12, 4), (4, 4, 3, 3), 0, 8),
            'base': ((96, 192, 384, 576), (4, 8, 18, 3), (4, 4, 3, 3), 0, 8),
            'hybrid-small': ((64, 128, 320, 384), (3, 6, 12, 4), (4, 4, 3, 3), 2, 8),
            'hybrid-base': ((96, 192, 384, 576), (3, 12, 18, 3), (4, 4, 3, 3), 2, 8),
        },
    )

    def __init__(
        self,
        arch: str | Mapping = 'small',
        *,
        in_channels: int = 3,
        mixer: str = 'lisa',
        embed_dims: int | None = None,
        num_heads: int | None = None,
        patch_size: int | None = None,
        img_size: int | tuple[int, int] = 224,
        patterns: int | None = None,
        kernel_resize: str = 'zero_embed',
        kernel_domain: str = 'spatial',
        drop_path_rate: float = 0.0,
        out_indices: int | tuple[int, ...] | None = None,
        out_norm: bool = True,
        frozen_stages: int = -1,
        with_cp: bool = False,
        qkv_bias: bool = True,
        proj_bias: bool = False,
        local_kernel: int = 7,
        activation: str = 'gelu',
        fft_dims: int | None = None,
        cache_size: int = 1,
        backend: str | None = None,
        compile: bool | Mapping = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        if activation not in ACTIVATIONS:
            raise UserError(
                f'LiSANet: activation must be one of {list(ACTIVATIONS)}, '
                f'got {activation!r}'
            )
        act_layer = ACTIVATIONS[activation]
        super().__init__(arch, out_indices, with_cp, compile, init_cfg, in_channels)
        self.plain = len(self.arch['depths']) == 1
        given = embed_dims, num_heads, patch_size
        if not self.plain and given != (None, None, None):
            raise UserError(
                'LiSANet: embed_dims, num_heads and patch_size are for a network of '
                f'one stage, got {embed_dims}, {num_heads} and {patch_size} for '
                f'{arch!r}'
            )
        self.patch_size = PATCH_SIZE if patch_size is None else patch_size
        if embed_dims is not None:
            self.arch = dict(self.arch, embed_dims=(embed_dims,))
        arch = self.arch
        embed_dims, depths = arch['embed_dims'], arch['depths']
        if num_heads is None and any(channels % HEAD_DIMS for channels in embed_dims):
            raise UserError(
                f'LiSANet: embed_dims must be multiples of {HEAD_DIMS}, or num_heads '
                f'given, got {embed_dims}'
            )
        strides = [
            self.patch_size if self.plain else 4 << i for i in range(len(depths))
        ]
        grids = [grid_of(img_size, stride) for stride in strides]
        patterns = arch['patterns'] if patterns is None else patterns
        self._check_mixer(mixer)

        def attention(channels: int, grid: tuple[int, int]) -> nn.Module:
            heads = channels // HEAD_DIMS if num_heads is None else num_heads
            if mixer != 'lisa':
                return MIXERS[mixer](channels, heads, grid, patterns, local_kernel)
            return StructureAwareAttention(
                channels,
                heads,
                grid,
                patterns=patterns,
                qkv_bias=qkv_bias,
                proj_bias=proj_bias,
                kernel_resize=kernel_resize,
                kernel_domain=kernel_domain,
                fft_dims=fft_dims,
                cache_size=cache_size,
                backend=backend,
            )

        def block(stage: int, index: int, drop_path: float) -> nn.Module:
            channels = embed_dims[stage]
            hidden_dims = arch['mlp_ratios'][stage] * channels
            if stage < arch['conv_stages']:
                mix = SeparableConv(channels, 7, act_layer)
            else:
                mix = attention(channels, grids[stage])
            position, mlp = None, PointwiseMlp(channels, hidden_dims, act_layer)
            if not self.plain:
                position = DepthwiseConv(channels, 3)
                mlp = ConvMlp(channels, hidden_dims, act_layer)
            return LiSABlock(channels, position, mix, mlp, drop_path)

        def embed(stage: int) -> nn.Module:
            channels = embed_dims[stage]
            if self.plain:
                patches = dict(kernel_size=self.patch_size, stride=self.patch_size)
                return PatchEmbed(in_channels, channels, norm=False, **patches)
            if stage == 0:
                return PatchEmbed(
                    in_channels, channels, kernel_size=7, stride=4, padding=3
                )
            dims = embed_dims[stage - 1 : stage + 1]
            return PatchEmbed(*dims, kernel_size=3, stride=2, padding=1)

        stages = self.build_layers(embed, block, drop_path_rate)
        self.patch_embeds = nn.ModuleList(stage.downsample for stage in stages)
        self.blocks = nn.ModuleList(stage.blocks for stage in stages)
        self.out_norms = self.build_out_norms(layer_norm, out_norm)
        self.init_parameters(self.patch_embeds[0].conv)
        self.register_parameter('pos_embed', None)
        if self.plain:
            self.grid_size = grids[0]
            self.pos_embed = nn.Parameter(torch.empty(1, prod(grids[0]), embed_dims[0]))
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
            fit_on_load(self, 'pos_embed', self.grid_size, dim=1)
        self.freeze(frozen_stages)

    def _check_mixer(self, mixer: str):
        mixers = ['lisa', *(MIXERS if self.plain else ())]
        if mixer not in mixers:
            raise UserError(
                f'LiSANet: mixer of a network of {"one" if self.plain else "several"} '
                f'stages must be one of {mixers}, got {mixer!r}'
            )

    def no_weight_decay_keywords(self) -> frozenset[str]:
        """Return parts of the names of parameters that should not decay.

        The tables that self-attention adds to its scores do not decay, as in other
        networks. Those of the other mixers multiply, as convolution kernels do, and
        decay.
        """
        added = any(isinstance(module, SelfAttention) for module in self.modules())
        return NO_WEIGHT_DECAY | ({'mixer.table'} if added else set())

    def parts(self):
        return list(zip(self.patch_embeds, self.blocks, strict=True))

    def stages(self):
        stages = super().stages()
        if self.plain:
            stages[0].append(self.pos_embed)
        return stages

    def levels(self):
        if self.plain:
            return [(self.arch['embed_dims'][0], self.patch_size)]
        return super().levels()

    def level_lists(self):
        return [self.patch_embeds, self.blocks]

    def walk(self, x, indices, take):
        x = pad_to_patches(x, self.patch_size) if self.plain else x
        return super().walk(x, indices, take)

    def add_positions(self, x: Tensor, stage: int) -> Tensor:
        if not self.plain:
            return x
        return x + pos_embed_map(self.pos_embed, self.grid_size, x.shape[1:3])
