"""DAT++: a pyramid of neighborhood attention and attention to deformed points.

Xia, Pan, Song, Li and Huang, "DAT++: Spatially Dynamic Vision Transformer with
Deformable Attention", https://arxiv.org/abs/2309.01430. Settings follow the
official code (https://github.com/LeapLabTHU/DAT at 32173fcf, Apache-2.0), whose
checkpoints load. That code requires NATTEN (https://github.com/SHI-Labs/NATTEN), ours
does not.

Channels come last inside the network.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import (
    DepthwiseConv,
    DropPath,
    PointwiseLinear,
    PointwiseMlp,
    grid_of,
)
from mmattn.models.layers.strips import convolve_by_strips
from mmattn.ops.common.recompute import recomputed
from mmattn.registry import MODELS
from mmattn.weights.layouts import layouts

from .base_backbone import BaseBackbone
from .dat import ARCH, block_kinds, build_attention, convert_name
from .dat import PatchEmbed as PaddedPatchEmbed
from .pvt_v2 import PatchEmbed

OFFSET_STRIDES = 8, 4, 2, 1
CONV = dict(kernel_size=3, stride=2, padding=1)  # of overlapping patches
WINDOW_SIZE = 7  # of blocks 'L' and 'S', which the paper's networks do not have


class Stem(PatchEmbed):
    """Two strided convolutions: (B, H, W, C) to (B, ceil(H / 4), ceil(W / 4), C')."""

    def __init__(self, in_channels: int, embed_dims: int):
        super().__init__(in_channels, embed_dims // 2, **CONV)
        self.act = nn.GELU()
        self.second = PatchEmbed(embed_dims // 2, embed_dims, **CONV)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.act(super().forward(x)))


class ResidualConvMlp(nn.Module):
    """MLP with a depthwise convolution beside its hidden layer."""

    def __init__(self, embed_dims: int):
        super().__init__()
        self.fc1 = PointwiseLinear(embed_dims, 4 * embed_dims)
        self.dwconv = DepthwiseConv(4 * embed_dims, 3, residual=True)
        self.act = nn.GELU()
        self.fc2 = PointwiseLinear(4 * embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        return convolve_by_strips(
            self.fc1,
            self.dwconv,
            lambda x: self.fc2(recomputed(self.act, x)),
            x,
        )


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
        self.lpu = DepthwiseConv(embed_dims, 3, residual=True) if lpu else None
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
            x = self.lpu(x)
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


@MODELS.register_module()
class DATPlusPlus(BaseBackbone):
    """Deformable attention transformer, the second version.

    Args:
        arch: 'tiny', 'small', 'base', 'nano' (ours, for demos and tests), or a dict
            with `embed_dims`, `depths`, `num_heads` and `num_groups` of each stage.
            Neighborhood and deformable attention alternate; the last stage has
            deformable attention alone. Heads of a group share offsets.
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
            compile, init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size and returns a tuple of maps
        (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32, sides rounded up.

    Raises:
        ValueError: unknown arch, stage index or setting.
    """

    arch_zoo = {
        name: dict(zip(ARCH, row, strict=True))
        for name, row in {
            'nano': ((32, 64, 128, 256), (2, 2, 6, 2), (1, 2, 4, 8), (1, 1, 2, 4)),
            'tiny': ((64, 128, 256, 512), (2, 4, 18, 2), (2, 4, 8, 16), (1, 2, 4, 8)),
            'small': ((96, 192, 384, 768), (2, 4, 18, 2), (3, 6, 12, 24), (1, 2, 3, 6)),
            'base': (
                (128, 256, 512, 1024),
                (2, 4, 18, 2),
                (4, 8, 16, 32),
                (2, 4, 8, 16),
            ),
        }.items()
    }

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        img_size: int | tuple[int, int] = 224,
        blocks: Sequence[str] | None = None,
        offset_strides: Sequence[int] = OFFSET_STRIDES,
        offsets: bool = True,
        offset_range: float | None = None,
        position: str = 'table',
        lpu: bool = True,
        conv_mlp: bool = True,
        conv_stem: bool = True,
        out_norm: bool = True,
        backend: str | None = None,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims, depths = arch['embed_dims'], arch['depths']
        super().__init__(embed_dims, **frame)
        if len(depths) != len(OFFSET_STRIDES):
            raise UserError(
                f'DATPlusPlus: arch must have {len(OFFSET_STRIDES)} stages, '
                f'got {depths=}'
            )
        kinds = ('ND', 'ND', 'ND', 'D') if blocks is None else blocks
        letters = chain(*block_kinds(kinds, depths))

        def block(stage: int, drop_path: float) -> DATPlusPlusBlock:
            shape = embed_dims[stage], arch['num_heads'][stage]
            attn = build_attention(
                next(letters),
                *shape,
                stage=stage,
                window_size=WINDOW_SIZE,
                backend=backend,
                num_groups=arch['num_groups'][stage],
                table_grid=grid_of(img_size, self.level_strides[stage]),
                stride=offset_strides[stage],
                version=2,
                offsets=offsets,
                offset_range=offset_range,
                position=position,
            )
            return DATPlusPlusBlock(shape[0], attn, drop_path, lpu, conv_mlp)

        if conv_stem:
            self.stem = Stem(self.in_channels, embed_dims[0])
            downsample = partial(PatchEmbed, **CONV, bias=False)
        else:
            self.stem = PaddedPatchEmbed(self.in_channels, embed_dims[0], 4, bias=True)
            downsample = partial(PaddedPatchEmbed, patch_size=2, bias=False)
        self.build_stages(depths, downsample, block)
        self.build_out_norms(out_norm)
        self.freeze()

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights)


MARKERS = {  # names that DAT does not have
    'official': 'stages.0.local_perception_units.0.weight',
    'mmattn': 'stages.0.blocks.0.lpu.weight',
}
PROJECTION = re.compile(r'stages\.\d+\.(attns|mlps)\.')
STEM = {'0': 'proj', '1': 'norm', '3': 'second.proj', '4': 'second.norm'}
MLP = {'linear1': 'fc1', 'dwc': 'dwconv', 'linear2': 'fc2'}


def layout_of(state_dict: Mapping[str, Tensor]) -> str:
    """Return whose names a DAT++'s weights have: 'official' or 'mmattn'.

    Raises:
        ValueError: the names are neither's.
    """
    return layouts.layout_of(state_dict, MARKERS, 'DAT++')


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of the official repositories to the names of `DATPlusPlus`.

    They may belong to a classifier, whose only norm is the last stage's, or to the
    backbone of a detector or segmentor. Names of `DATPlusPlus` and of other parts, such
    as `cls_head`, stay; the latter are reported when the weights are loaded.
    """
    stages = [int(n.split('.')[1]) for n in state_dict if n.startswith('stages.')]
    last = max(stages, default=0)
    converted = {}
    for name, value in state_dict.items():
        if PROJECTION.match(name) and value.shape[2:] == (1, 1):
            value = value.flatten(1)  # a 1x1 convolution is a linear layer here
        converted[convert_plus_plus_name(name, last)] = value
    return converted


def convert_plus_plus_name(name: str, last: int) -> str:
    """Return our name of an official one; `cls_norm` follows the stage `last`."""
    match name.split('.'):
        case ['patch_proj', i, *_, leaf]:
            return f'stem.{STEM[i]}.{leaf}'
        case ['stages', stage, 'local_perception_units', block, leaf]:
            return f'stages.{stage}.blocks.{block}.lpu.{leaf}'
        case ['stages', stage, 'mlps', block, layer, *_, leaf]:
            return f'stages.{stage}.blocks.{block}.mlp.{MLP[layer]}.{leaf}'
        case ['norms', stage, 'norm', leaf]:
            return f'out_norms.{stage}.{leaf}'
    return convert_name(name, last)
