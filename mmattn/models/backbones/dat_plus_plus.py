"""DAT++: a pyramid of neighborhood attention and attention to deformed points.

Xia, Pan, Song, Li and Huang, "DAT++: Spatially Dynamic Vision Transformer with
Deformable Attention", https://arxiv.org/abs/2309.01430. Settings follow the
official code (https://github.com/LeapLabTHU/DAT at 32173fcf, Apache-2.0), whose
checkpoints load. That code requires NATTEN (https://github.com/SHI-Labs/NATTEN), ours
does not.

Channels come last inside the network.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.checkpoints import layouts
from mmattn.models.checkpoints.load_hook import load_hook
from mmattn.models.layers import (
    DeformableAttention,
    DepthwiseConv,
    DropPath,
    PointwiseLinear,
    PointwiseMlp,
    grid_of,
)
from mmattn.registry import MODELS

from .base_backbone import NO_WEIGHT_DECAY, presets
from .dat import PatchEmbed as PlainPatchEmbed
from .dat import block_kinds, build_attention, convert_name
from .pyramid import Pyramid

OFFSET_KERNELS = 9, 7, 5, 3  # of the stages
OFFSET_STRIDES = 8, 4, 2, 1
WINDOW_SIZE = 7  # of blocks 'L' and 'S', which the paper's networks do not have


class ConvNorm(nn.Module):
    """Strided convolution and norm.

    It maps (B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), C').
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, out_channels, 3, 2, padding=1, bias=bias)
        self.norm = nn.LayerNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


class PatchEmbed(nn.Module):
    """Two strided convolutions: (B, H, W, C) to (B, ceil(H / 4), ceil(W / 4), C')."""

    def __init__(self, in_channels: int, embed_dims: int):
        super().__init__()
        self.conv1 = ConvNorm(in_channels, embed_dims // 2, bias=True)
        self.act = nn.GELU()
        self.conv2 = ConvNorm(embed_dims // 2, embed_dims, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.act(self.conv1(x)))


class ResidualConvMlp(nn.Module):
    """MLP with a depthwise convolution beside its hidden layer."""

    def __init__(self, embed_dims: int):
        super().__init__()
        self.fc1 = PointwiseLinear(embed_dims, 4 * embed_dims)
        self.dwconv = DepthwiseConv(4 * embed_dims, 3)
        self.act = nn.GELU()
        self.fc2 = PointwiseLinear(4 * embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.fc2(self.act(x + self.dwconv(x)))


class DATPlusPlusBlock(nn.Module):
    """Local perception unit, if any, attention and MLP; (B, H, W, C) in and out."""

    def __init__(
        self,
        embed_dims: int,
        attn: nn.Module,
        drop_path: float,
        lpu: bool = True,
        conv_mlp: bool = True,
    ):
        super().__init__()
        self.lpu = DepthwiseConv(embed_dims, 3) if lpu else None
        self.norm1 = nn.LayerNorm(embed_dims)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims)
        self.mlp = (
            ResidualConvMlp(embed_dims)
            if conv_mlp
            else PointwiseMlp(embed_dims, 4 * embed_dims)
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        if self.lpu is not None:
            x = x + self.lpu(x)
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


@MODELS.register_module()
class DATPlusPlus(Pyramid):
    """Deformable attention transformer, the second version.

    Args:
        arch: 'tiny', 'small', 'base', 'nano' (ours, for demos and tests), or a dict
            with `embed_dims`, `depths`, `num_heads` and `num_groups` of each stage.
            Neighborhood and deformable attention alternate; the last stage has
            deformable attention alone. The groups are those of its offsets.
        img_size: image side, or (height, width), that the tables of the deformable
            attention are made for. Other sizes read the same tables, at normalized
            displacements. Loaded tables of another size are resized (bicubic).
        blocks: letters of the blocks of each stage, which repeat: 'N' for neighborhood
            and 'D' for deformable attention, 'L' for windows and 'S' for shifted ones.
            None takes the paper's.
        offset_strides: pixels a side for each key of the deformable attention, by
            stage.
        offsets, offset_range, position: settings of the deformable attention; see
            `DeformableAttention`.
        lpu: whether blocks begin with a local perception unit, a depthwise convolution.
        conv_mlp: whether MLPs have a depthwise convolution.
        conv_stem: whether patches overlap, in the stem and between stages. Patches
            without overlap are padded right and below. The paper's DAT+ has neither of
            these three.
        backend: backend of the operators; None takes the fastest.
        in_channels, drop_path_rate, out_indices, out_norm, frozen_stages, with_cp,
            compile, init_cfg: see `Pyramid`.

    Forward:
        Takes images (B, 3, H, W) of any size and returns a tuple of maps
        (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32, sides rounded up.

    Raises:
        ValueError: unknown arch, stage index or setting.
    """

    stem_conv = 'patch_embed.conv1.proj'
    arch_zoo = presets(
        ('embed_dims', 'depths', 'num_heads', 'num_groups'),
        {
            'nano': ((32, 64, 128, 256), (2, 2, 6, 2), (1, 2, 4, 8), (1, 1, 2, 4)),
            'tiny': ((64, 128, 256, 512), (2, 4, 18, 2), (2, 4, 8, 16), (1, 2, 4, 8)),
            'small': ((96, 192, 384, 768), (2, 4, 18, 2), (3, 6, 12, 24), (1, 2, 3, 6)),
            'base': (
                (128, 256, 512, 1024),
                (2, 4, 18, 2),
                (4, 8, 16, 32),
                (2, 4, 8, 16),
            ),
        },
    )

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        in_channels: int = 3,
        img_size: int | tuple[int, int] = 224,
        blocks: Sequence[str] | None = None,
        offset_strides: Sequence[int] = OFFSET_STRIDES,
        offsets: bool = True,
        offset_range: float | None = None,
        position: str = 'table',
        lpu: bool = True,
        conv_mlp: bool = True,
        conv_stem: bool = True,
        drop_path_rate: float = 0.0,
        out_indices: int | tuple[int, ...] | None = None,
        out_norm: bool = True,
        frozen_stages: int = -1,
        with_cp: bool = False,
        backend: str | None = None,
        compile: bool | Mapping = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(arch, out_indices, with_cp, compile, init_cfg, in_channels)
        arch = self.arch
        embed_dims, depths = arch['embed_dims'], arch['depths']
        if len(depths) != len(OFFSET_STRIDES):
            raise UserError(
                f'DATPlusPlus: arch must have {len(OFFSET_STRIDES)} stages, '
                f'got {depths=}'
            )

        kinds = block_kinds(
            ('ND', 'ND', 'ND', 'D') if blocks is None else blocks, depths
        )

        def attention(stage: int, block: int) -> nn.Module:
            shape = embed_dims[stage], arch['num_heads'][stage]
            return build_attention(
                kinds[stage][block],
                *shape,
                stage=stage,
                window_size=WINDOW_SIZE,
                backend=backend,
                deformable=lambda: DeformableAttention(
                    *shape,
                    arch['num_groups'][stage],
                    grid_of(img_size, 4 << stage),
                    kernel_size=OFFSET_KERNELS[stage],
                    stride=offset_strides[stage],
                    version=2,
                    offsets=offsets,
                    offset_range=offset_range,
                    position=position,
                    backend=backend,
                ),
            )

        def downsample(stage: int) -> nn.Module | None:
            if stage == 0:
                return None
            dims = embed_dims[stage - 1 : stage + 1]
            if conv_stem:
                return ConvNorm(*dims, bias=False)
            return PlainPatchEmbed(*dims, 2, bias=False)

        def block(stage: int, index: int, drop_path: float) -> nn.Module:
            attn = attention(stage, index)
            return DATPlusPlusBlock(embed_dims[stage], attn, drop_path, lpu, conv_mlp)

        if conv_stem:
            self.patch_embed = PatchEmbed(in_channels, embed_dims[0])
        else:
            self.stem_conv = 'patch_embed.proj'
            self.patch_embed = PlainPatchEmbed(in_channels, embed_dims[0], 4, bias=True)
        self.layers = self.build_layers(downsample, block, drop_path_rate)
        self.out_norms = self.build_out_norms(nn.LayerNorm, out_norm)
        self.register_load_state_dict_pre_hook(take_official_names)
        self.freeze(frozen_stages)

    def no_weight_decay_keywords(self) -> frozenset[str]:
        """Return parts of the names of parameters that should not decay.

        The tables of both attentions do not decay. The official lists name `rpe_table`
        and not `rpb`, so the tables of neighborhood attention decay there.
        """
        return NO_WEIGHT_DECAY | {'rpb'}


MARKERS = {  # names that DAT does not have
    'official': 'stages.0.local_perception_units.0.weight',
    'mmattn': 'layers.0.blocks.0.lpu.weight',
}
STEM = {'0': 'conv1.proj', '1': 'conv1.norm', '3': 'conv2.proj', '4': 'conv2.norm'}
MLP = {'linear1': 'fc1', 'dwc': 'dwconv', 'linear2': 'fc2'}


def layout_of(state_dict: Mapping[str, Tensor]) -> str:
    """Return whose names a DAT++'s weights have: 'official' or 'mmattn'.

    Raises:
        ValueError: the names are neither's.
    """
    return layouts.layout_of(state_dict, MARKERS, 'DAT++')


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of the official repositories to the names of `DATPlusPlus`.

    They may be those of a classifier, whose only norm is the last stage's, or of the
    backbone of a detector or segmentor. Names of `DATPlusPlus` and of other parts, such
    as `cls_head`, stay; the latter are reported when the weights are loaded.
    """
    stages = [int(n.split('.')[1]) for n in state_dict if n.startswith('stages.')]
    last = max(stages, default=0)
    converted = {}
    for name, value in state_dict.items():
        if name.startswith('stages.') and value.shape[2:] == (1, 1):
            value = value.flatten(1)  # a 1x1 convolution is a linear layer here
        converted[convert_plus_plus_name(name, last)] = value
    return converted


def convert_plus_plus_name(name: str, last: int) -> str:
    """Return our name of an official one; `cls_norm` follows the stage `last`."""
    match name.split('.'):
        case ['patch_proj', i, *_, leaf]:
            return f'patch_embed.{STEM[i]}.{leaf}'
        case ['stages', stage, 'local_perception_units', block, leaf]:
            return f'layers.{stage}.blocks.{block}.lpu.{leaf}'
        case ['stages', stage, 'mlps', block, layer, *_, leaf]:
            return f'layers.{stage}.blocks.{block}.mlp.{MLP[layer]}.{leaf}'
        case ['norms', stage, 'norm', leaf]:
            return f'out_norms.{stage}.{leaf}'
    return convert_name(name, last)


@load_hook
def take_official_names(
    module: nn.Module, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    return convert_state_dict(weights)
