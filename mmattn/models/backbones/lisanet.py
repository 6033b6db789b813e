"""LiSANet and HyLiSANet: structure-aware attention on plain and pyramid grids.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289, section 4 and Tables 2 and
11. No official code is known. The pyramid has the patch embeddings and MLPs of
PVTv2 (Wang et al., https://arxiv.org/abs/2106.13797), and the conv position
embeddings of CPVT (Chu et al., https://arxiv.org/abs/2102.10882), its reference 56.

The paper gives depths, channels, heads of 16 channels, patterns, MLP ratios and the
types of the stages. The inside of the convolution blocks, the places of biases and the
layout of the heads are inferred, since they reproduce the paper's parameter and FLOP
tables. The tables decide neither the activation nor whether each block has a conv
position embedding: CPVT has a single one, after the first encoder, and each block has
one here, as in UniFormer (Li et al., https://arxiv.org/abs/2201.09450).

Channels come last inside the network, as in `IViT`.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.models.layers import (
    DepthwiseConv,
    DropPath,
    PatchStem,
    PointwiseMlp,
    SeparableConv,
    StarReLU,
    StructureAwareAttention,
    drop_path_rates,
    grid_of,
    init_linear_and_conv,
    init_stem_bias,
)
from mmattn.ops.common.recompute import recomputed
from mmattn.registry import MODELS

from .base_backbone import BaseBackbone
from .pvt_v2 import EPSILON, ConvMlp, PatchEmbed

HEAD_DIMS = 16
PATCH_SIZE = 16  # in the paper's plain network
ARCH = 'embed_dims', 'depths', 'mlp_ratios', 'conv_stages', 'patterns'
ACTIVATIONS = {'gelu': nn.GELU, 'star_relu': StarReLU}


class LiSABlock(nn.Module):
    """Conv position embedding, if any, attention and MLP, with residuals.

    The position embedding adds its input itself.
    """

    def __init__(
        self,
        embed_dims: int,
        position: nn.Module | None,
        attn: nn.Module,
        mlp: nn.Module,
        drop_path: float,
    ):
        super().__init__()
        self.position = position
        self.norm1 = nn.LayerNorm(embed_dims, eps=EPSILON)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims, eps=EPSILON)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        if self.position is not None:
            x = self.position(x)
        x = x + self.drop_path(self.attn(recomputed(self.norm1, x)))
        return x + self.drop_path(self.mlp(recomputed(self.norm2, x)))


@MODELS.register_module()
class LiSANet(BaseBackbone):
    """Lightweight structure-aware attention network.

    Args:
        arch: 'isotropic' (one stage of stride 16), 'small', 'base', 'hybrid_small',
            'hybrid_base' (HyLiSANet, with convolution blocks in stages 1 and 2),
            'hybrid_nano' (ours, for demos and tests), or a dict with `embed_dims`,
            `depths` and `mlp_ratios` of each stage, `conv_stages` (number of stages of
            convolution blocks) and `patterns` (K). A network of one stage is plain: it
            has a position embedding and no convolutions in its blocks.
        patch_size: side of a patch of the plain network; None is the paper's 16.
        img_size: image side, or (height, width), that kernels and position embedding
            are made for. They are resized for other sizes, at run time and on load.
        patterns: structural patterns K; None takes the arch's.
        kernel_resize: 'gfnet' (GFNet's, which the paper cites for larger images),
            'zero_embed' (taps keep their distance in pixels), 'stretch' or 'spectral',
            see `ops.circular_kernel_spectrum`.
        activation: activation of all MLPs and convolution blocks, 'gelu' or
            'star_relu'.
        kernel_domain, qkv_bias, proj_bias, fft_dims, cache_size, backend: see
            `StructureAwareAttention`. At 384 pixels, kernels in the domain 'frequency'
            have the parameters that the paper prints.
        out_indices: stages whose maps are returned; None returns all. The levels of the
            plain network are its blocks, and None returns the last.
        in_channels, drop_path_rate, out_norm, frozen_stages, with_cp, compile,
            init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size (the plain network pads right and below to
        whole patches) and returns a tuple of maps (B, C_i, H_i, W_i) at strides 4, 8,
        16 and 32, or `patch_size` for the plain network.

    Raises:
        ValueError: unknown arch, stage index or setting.
    """

    arch_zoo = {
        name: dict(zip(ARCH, row, strict=True))
        for name, row in {
            'hybrid_nano': ((32, 64, 160, 256), (2, 2, 6, 2), (4, 4, 3, 3), 2, 8),
            'isotropic': ((192,), (12,), (4,), 0, 16),
            'small': ((64, 128, 320, 384), (2, 4, 12, 4), (4, 4, 3, 3), 0, 8),
            'base': ((96, 192, 384, 576), (4, 8, 18, 3), (4, 4, 3, 3), 0, 8),
            'hybrid_small': ((64, 128, 320, 384), (3, 6, 12, 4), (4, 4, 3, 3), 2, 8),
            'hybrid_base': ((96, 192, 384, 576), (3, 12, 18, 3), (4, 4, 3, 3), 2, 8),
        }.items()
    }

    def __init__(
        self,
        arch: str | Mapping = 'small',
        *,
        patch_size: int | None = None,
        img_size: int | tuple[int, int] = 224,
        patterns: int | None = None,
        kernel_resize: str = 'gfnet',
        kernel_domain: str = 'spatial',
        out_indices: int | tuple[int, ...] | None = None,
        out_norm: bool = True,
        qkv_bias: bool = True,
        proj_bias: bool = False,
        activation: str = 'gelu',
        fft_dims: int | None = None,
        cache_size: int = 1,
        backend: str | None = None,
        **frame,
    ):
        check_choice('LiSANet: activation', activation, ACTIVATIONS)
        act_layer = ACTIVATIONS[activation]
        arch = self.resolve_arch(arch)
        plain = len(arch['depths']) == 1
        if not plain and patch_size is not None:
            raise UserError(
                'LiSANet: patch_size is for a network of one stage, '
                f'got {patch_size} for {arch!r}'
            )
        patch_size = PATCH_SIZE if patch_size is None else patch_size
        embed_dims, depths = arch['embed_dims'], arch['depths']
        levels = depths[0] if plain else 1  # blocks, or a stage
        super().__init__(
            embed_dims * levels,
            [patch_size] * levels if plain else None,
            out_indices=-1 if plain and out_indices is None else out_indices,
            **frame,
        )
        self.arch, self.plain = arch, plain
        grids = [grid_of(img_size, stride) for stride in self.level_strides]
        settings = dict(
            patterns=arch['patterns'] if patterns is None else patterns,
            qkv_bias=qkv_bias,
            proj_bias=proj_bias,
            kernel_resize=kernel_resize,
            kernel_domain=kernel_domain,
            fft_dims=fft_dims,
            cache_size=cache_size,
            backend=backend,
        )

        def block(stage: int, drop_path: float) -> LiSABlock:
            channels = embed_dims[stage]
            hidden_dims = arch['mlp_ratios'][stage] * channels
            if stage < arch['conv_stages']:
                attn = SeparableConv(channels, 7, act_layer)
            else:
                attn = self.make_attention(channels, grids[stage], **settings)
            position, mlp = None, PointwiseMlp(channels, hidden_dims, act_layer)
            if not plain:
                position = DepthwiseConv(channels, 3, residual=True)
                mlp = ConvMlp(channels, hidden_dims, act_layer)
            return LiSABlock(channels, position, attn, mlp, drop_path)

        if plain:
            self.stem = PatchStem(self.in_channels, embed_dims[0], patch_size, img_size)
            rates = drop_path_rates(self.drop_path_rate, *depths)
            rates = rates[: self.out_indices[-1] + 1]
            self.blocks = nn.ModuleList(block(0, rate) for rate in rates)
        else:
            conv = dict(kernel_size=7, stride=4, padding=3, eps=EPSILON)
            self.stem = PatchEmbed(self.in_channels, embed_dims[0], **conv)
            conv = dict(kernel_size=3, stride=2, padding=1, eps=EPSILON)
            self.build_stages(depths, partial(PatchEmbed, **conv), block)
        self.build_out_norms(out_norm, eps=EPSILON)
        self.apply(init_linear_and_conv)
        init_stem_bias(self.stem)
        self.freeze()

    def make_attention(
        self, channels: int, grid: tuple[int, int], **settings
    ) -> nn.Module:
        """Return the attention of a block; a subclass may return another layer.

        Args:
            channels: channels C of the block.
            grid: height and width of the block's map.
            **settings: the other arguments of `StructureAwareAttention`.

        Returns:
            Layer with maps (B, H, W, C) in and out.

        Raises:
            ValueError: `channels` is not a multiple of 16, or a setting is wrong.
        """
        if channels % HEAD_DIMS:
            raise UserError(
                f'LiSANet: embed_dims must be multiples of {HEAD_DIMS}, got {channels}'
            )
        return StructureAwareAttention(
            channels, channels // HEAD_DIMS, grid, **settings
        )
