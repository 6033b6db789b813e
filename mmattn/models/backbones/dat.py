"""DAT: a pyramid of window attention and attention to deformed points.

Xia, Pan, Song, Li and Huang, "Vision Transformer with Deformable Attention",
https://arxiv.org/abs/2201.00520. Settings follow the
official code (https://github.com/LeapLabTHU/DAT at 566a593d, Apache-2.0), whose
checkpoints load. Unlike there, images may have any size: windows are padded and masked,
and the tables of the deformable attention are read at normalized displacements.

Channels come last inside the network.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import (
    DeformableAttention,
    GridConv,
    NeighborhoodAttention,
    PointwiseMlp,
    SpatialReductionAttention,
    WindowAttention,
    grid_of,
    pad_to_patches,
)
from mmattn.registry import MODELS
from mmattn.weights.layouts import layouts

from .base_backbone import BaseBackbone
from .pvt_v2 import Block

ARCH = 'embed_dims', 'depths', 'num_heads', 'num_groups'
PATCH_SIZE = 4
OFFSET_KERNELS = 9, 7, 5, 3  # of the stages
REDUCTIONS = 8, 4, 2, 1  # of blocks 'P', by stage, as in PVT
# Window, shifted window, neighborhood, spatial-reduction and deformable attention.
BLOCKS = 'LSNPD'


def block_kinds(blocks: Sequence[str], depths: Sequence[int]) -> list[str]:
    """Return the letter of each block, by stage; a stage repeats its letters.

    Raises:
        ValueError: a letter is not of `BLOCKS`, or there is no entry for each stage.
    """
    if len(blocks) != len(depths) or not all(
        kinds and set(kinds) <= set(BLOCKS) for kinds in blocks
    ):
        raise UserError(
            f'blocks must have letters of {BLOCKS!r} for each of {len(depths)} stages, '
            f'got {blocks}'
        )
    return [
        (kinds * depth)[:depth] for kinds, depth in zip(blocks, depths, strict=True)
    ]


def build_attention(
    kind: str,
    embed_dims: int,
    num_heads: int,
    *,
    stage: int,
    window_size: int,
    backend: str | None,
    **deformable,
) -> nn.Module:
    """Build the attention of a block by its letter of `BLOCKS`.

    `deformable` has the other settings of `DeformableAttention`.
    """
    match kind:
        case 'L':
            return WindowAttention(embed_dims, num_heads, window_size)
        case 'S':
            shift = (window_size + 1) // 2
            return WindowAttention(embed_dims, num_heads, window_size, shift)
        case 'N':
            return NeighborhoodAttention(embed_dims, num_heads, backend=backend)
        case 'P':
            return SpatialReductionAttention(embed_dims, num_heads, REDUCTIONS[stage])
    kernel_size = OFFSET_KERNELS[stage]
    return DeformableAttention(
        embed_dims, num_heads, kernel_size=kernel_size, backend=backend, **deformable
    )


class PatchEmbed(nn.Module):
    """Patches (B, ceil(H / P), ceil(W / P), C') of maps (B, H, W, C), with a norm."""

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, bias: bool):
        super().__init__()
        self.patch_size = patch_size
        self.proj = GridConv(
            in_channels, embed_dims, patch_size, stride=patch_size, bias=bias
        )
        self.norm = nn.LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_to_patches(x.movedim(-1, 1), self.patch_size).movedim(1, -1)
        return self.norm(self.proj(x))


@MODELS.register_module()
class DAT(BaseBackbone):
    """Deformable attention transformer, the first version.

    Args:
        arch: 'tiny', 'small', 'base', 'nano' (ours, for demos and tests), or a dict
            with `embed_dims`, `depths`, `num_heads` and `num_groups` of each stage.
            The blocks of a stage alternate, from windows to deformable attention with
            that many groups of offsets. With 0 groups, shifted windows take its place.
        img_size: image side, or (height, width), that the tables of the deformable
            attention are made for. Other sizes read the same tables, at normalized
            displacements. Loaded tables of another size are resized (bicubic).
        window_size: pixels of a window's side, 12 in the official 'base' at 384. Loaded
            tables of another size are resized (bicubic).
        blocks: letters of the blocks of each stage, which repeat: 'L' for windows, 'S'
            for shifted ones, 'D' for deformable, 'N' for neighborhood and 'P' for PVT's
            spatial-reduction attention. 'D' needs a number of groups. None takes the
            paper's.
        offset_strides: pixels a side for each key of the deformable attention, by
            stage.
        offsets, offset_range, position: settings of the deformable attention, which the
            paper's ablations change; see `DeformableAttention`.
        backend: backend of the deformable attention; None takes the fastest.
        in_channels, drop_path_rate, out_indices, out_norm, frozen_stages, with_cp,
            compile, init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size, padded right and below, and returns a
        tuple of maps (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32.

    Raises:
        ValueError: unknown arch, stage index or setting.
    """

    arch_zoo = {
        name: dict(zip(ARCH, row, strict=True))
        for name, row in {
            'nano': ((32, 64, 160, 256), (2, 2, 6, 2), (1, 2, 5, 8), (0, 0, 1, 2)),
            'tiny': ((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (0, 0, 3, 6)),
            'small': ((96, 192, 384, 768), (2, 2, 18, 2), (3, 6, 12, 24), (0, 0, 3, 6)),
            'base': (
                (128, 256, 512, 1024),
                (2, 2, 18, 2),
                (4, 8, 16, 32),
                (0, 0, 4, 8),
            ),
        }.items()
    }

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        img_size: int | tuple[int, int] = 224,
        window_size: int = 7,
        blocks: Sequence[str] | None = None,
        offset_strides: Sequence[int] = (1, 1, 1, 1),
        offsets: bool = True,
        offset_range: float | None = None,
        position: str = 'table',
        out_norm: bool = True,
        backend: str | None = None,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims, depths = arch['embed_dims'], arch['depths']
        super().__init__(embed_dims, **frame)
        num_heads, num_groups = arch['num_heads'], arch['num_groups']
        grids = [grid_of(img_size, stride) for stride in self.level_strides]
        if blocks is None:  # a stage ends with shifted windows or deformable attention
            last = ['D' if groups else 'S' for groups in num_groups]
            blocks = [
                (f'L{kind}' * depth)[-depth:]
                for kind, depth in zip(last, depths, strict=True)
            ]
        kinds = block_kinds(blocks, depths)
        for stage, groups in enumerate(num_groups):
            if 'D' in kinds[stage] and not groups:
                raise UserError(
                    f"DAT: blocks 'D' of stage {stage} need a number of groups, got "
                    f'{num_groups=}'
                )

        letters = chain(*kinds)

        def block(stage: int, drop_path: float) -> Block:
            shape = embed_dims[stage], num_heads[stage]
            attn = build_attention(
                next(letters),
                *shape,
                stage=stage,
                window_size=window_size,
                backend=backend,
                num_groups=num_groups[stage],
                table_grid=grids[stage],
                stride=offset_strides[stage],
                version=1,
                offsets=offsets,
                offset_range=offset_range,
                position=position,
            )
            mlp = PointwiseMlp(shape[0], 4 * shape[0])
            return Block(shape[0], attn, mlp, drop_path, eps=1e-5)

        self.stem = PatchEmbed(self.in_channels, embed_dims[0], PATCH_SIZE, bias=True)
        downsample = partial(PatchEmbed, patch_size=2, bias=False)
        self.build_stages(depths, downsample, block)
        self.build_out_norms(out_norm)
        self.freeze()

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights)


MARKERS = {  # names that DAT++ does not have
    'official': 'stages.0.mlps.0.chunk.linear1.weight',
    'mmattn': 'stem.proj.weight',
}
CONV_AND_NORM = {'0': 'proj', '1': 'norm'}
BUFFERS = 'relative_position_index', 'attn_mask'  # derived from the window size


def layout_of(state_dict: Mapping[str, Tensor]) -> str:
    """Return whose names a DAT's weights have: 'official' or 'mmattn'.

    Raises:
        ValueError: the names are neither's.
    """
    return layouts.layout_of(state_dict, MARKERS, 'DAT')


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of the official repository to the names and shapes of `DAT`.

    It drops buffers. Names of `DAT` and of other parts, such as `cls_head`, stay; the
    latter are reported when the weights are loaded.
    """
    stages = [int(n.split('.')[1]) for n in state_dict if n.startswith('stages.')]
    last = max(stages, default=0)
    converted = {}
    for name, value in state_dict.items():
        if name.endswith(BUFFERS):
            continue
        linear = 'proj' in name.split('.')[-2] or '.conv_offset.3.' in name
        if '.attns.' in name and linear and value.dim() == 4:
            value = value.flatten(1)  # a 1x1 convolution is a linear layer here
        converted[convert_name(name, last)] = value
    return converted


def convert_name(name: str, last: int) -> str:
    """Return our name of an official one; `cls_norm` follows the stage `last`."""
    parts = [part for part in name.split('.') if part != 'norm']
    match parts:
        case ['patch_proj', i, leaf]:
            return f'stem.{CONV_AND_NORM[i]}.{leaf}'
        case ['down_projs', stage, i, leaf]:
            return f'stages.{int(stage) + 1}.downsample.{CONV_AND_NORM[i]}.{leaf}'
        case ['stages', stage, 'layer_norms', i, leaf]:
            block, norm = divmod(int(i), 2)
            return f'stages.{stage}.blocks.{block}.norm{norm + 1}.{leaf}'
        case ['stages', stage, 'mlps', block, 'chunk', linear, leaf]:
            fc = linear.replace('linear', 'fc')
            return f'stages.{stage}.blocks.{block}.mlp.{fc}.{leaf}'
        case ['stages', stage, 'attns', block, *rest]:
            return '.'.join(['stages', stage, 'blocks', block, 'attn', *rest])
        case ['cls_norm', leaf]:
            return f'out_norms.{last}.{leaf}'
    return name
