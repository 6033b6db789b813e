"""H-MaiT: Swin's pyramid with masked and global heads in place of its windows.

Li, Ardestani and Hassoun, "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, section 5.4. No official code is known.
The frame is Swin Transformer (Liu et al., https://arxiv.org/abs/2103.14030), whose
checkpoints load.

The paper gives Swin-T's and Swin-S's depths and widths, and how many heads of each
stage are masked. The other heads see the stage's whole map, and there is no class
token: this reproduces the paper's parameter and FLOP tables. The paper does not state
how positions are encoded. The default keeps Swin's table of 13 x 13 offsets per block,
inside the mask, and clips larger offsets. The number of parameters is then Swin's, as
the paper says; the digits of its tables allow the other three settings as well.

Channels come last inside the network.
"""

import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.models.layers import (
    MaskedAttention,
    PointwiseLinear,
    PointwiseMlp,
    RelativeMaskedAttention,
    fit_on_load,
    grid_of,
    init_linear_and_conv,
    pos_embed_map,
)
from mmattn.registry import MODELS

from .base_backbone import BaseBackbone
from .dat import PatchEmbed
from .pvt_v2 import Block

ARCH = 'embed_dims', 'depths', 'num_heads', 'masked_heads'
PATCH_SIZE = 4
POSITIONS = ('relative', 'full', 'absolute', 'none')


class Stem(PatchEmbed):
    """Normed patches, with learned positions if there is a `grid_size` for them."""

    def __init__(
        self, in_channels: int, embed_dims: int, grid_size: Sequence[int] | None
    ):
        super().__init__(in_channels, embed_dims, PATCH_SIZE, bias=True)
        self.grid_size = grid_size
        self.register_parameter('pos_embed', None)
        if grid_size is not None:
            H, W = grid_size
            self.pos_embed = nn.Parameter(torch.empty(1, H * W, embed_dims))
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
            fit_on_load(self, 'pos_embed', grid_size, dim=1)

    def no_weight_decay(self) -> set[str]:
        return {'pos_embed'}

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if self.pos_embed is None:
            return x
        return x + pos_embed_map(self.pos_embed, self.grid_size, x.shape[1:3])


class PatchMerging(nn.Module):
    """Swin's layer that joins 2 x 2 pixels; zeros pad odd maps right and below."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_channels)
        self.reduction = PointwiseLinear(4 * in_channels, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        h, w = (H + 1) // 2, (W + 1) // 2
        x = F.pad(x, (0, 0, 0, 2 * w - W, 0, 2 * h - H)).view(B, h, 2, w, 2, C)
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # (B, H, W, 4 * C)
        return self.reduction(self.norm(x))


@MODELS.register_module()
class HMaiT(BaseBackbone):
    """Hierarchical masked-attention image transformer.

    Args:
        arch: 'tiny', 'small' (Swin-T's and Swin-S's), 'nano' (ours, for demos and
            tests), or a dict with `embed_dims`, `depths`, `num_heads` and
            `masked_heads` of each stage.
        masked_heads: how many of the lowest heads are masked in each stage; None takes
            the arch's. The others see the whole map, at quadratic cost.
        kernel_size: width of the mask, odd.
        mask_fill: 'zero' (the paper's: tokens outside the mask keep the weight e^0), or
            'neg_inf' for only the neighbors.
        position: 'relative' (Swin's table, to which larger offsets are clipped), 'full'
            (a table of all offsets of the stage's map), 'absolute' (an embedding of the
            first map) or 'none' (only the borders of the map tell positions apart).
        img_size: image side, or (height, width), that 'full' and 'absolute' are made
            for. They are resized for other sizes, at run time and on load.
        backend: backend of the operator; None takes the fastest.
        in_channels, drop_path_rate, out_indices, out_norm, frozen_stages, with_cp,
            compile, init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size, padded right and below, and returns a
        tuple of maps (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32.

    Raises:
        ValueError: unknown arch, position, stage index or setting.
    """

    arch_zoo = {
        name: dict(zip(ARCH, row, strict=True))
        for name, row in {
            'nano': ((32, 64, 160, 256), (2, 2, 6, 2), (1, 2, 5, 8), (1, 2, 2, 0)),
            'tiny': ((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (3, 6, 4, 0)),
            'small': ((96, 192, 384, 768), (2, 2, 18, 2), (3, 6, 12, 24), (3, 6, 4, 0)),
        }.items()
    }

    starts = {
        'tiny': 'timm://swin_tiny_patch4_window7_224.ms_in1k',
        'small': 'timm://swin_small_patch4_window7_224.ms_in1k',
    }

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        masked_heads: Sequence[int] | None = None,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
        position: str = 'relative',
        img_size: int | tuple[int, int] = 224,
        out_norm: bool = True,
        backend: str | None = None,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims, depths = arch['embed_dims'], arch['depths']
        super().__init__(embed_dims, **frame)
        num_heads = arch['num_heads']
        masked_heads = arch['masked_heads'] if masked_heads is None else masked_heads
        if len(masked_heads) != len(num_heads) or any(
            not 0 <= masked <= heads
            for masked, heads in zip(masked_heads, num_heads, strict=True)
        ):
            raise UserError(
                f'HMaiT: masked_heads must be numbers up to {tuple(num_heads)}, '
                f'got {masked_heads}'
            )
        check_choice('HMaiT: position', position, POSITIONS)
        grids = [grid_of(img_size, stride) for stride in self.level_strides]

        def attention(stage: int) -> nn.Module:
            shape = embed_dims[stage], num_heads[stage], masked_heads[stage]
            options = dict(
                kernel_size=kernel_size, mask_fill=mask_fill, backend=backend
            )
            if position == 'relative':
                return RelativeMaskedAttention(*shape, **options)
            if position == 'full':
                return RelativeMaskedAttention(
                    *shape, table_grid=grids[stage], clip=False, **options
                )
            return MaskedAttention(*shape, **options)

        def block(stage: int, drop_path: float) -> Block:
            channels = embed_dims[stage]
            attn, mlp = attention(stage), PointwiseMlp(channels, 4 * channels)
            return Block(channels, attn, mlp, drop_path, eps=1e-5)

        absolute = position == 'absolute'
        self.stem = Stem(
            self.in_channels, embed_dims[0], grids[0] if absolute else None
        )
        self.build_stages(depths, PatchMerging, block)
        self.build_out_norms(out_norm)
        self.apply(init_linear_and_conv)
        # Swin keeps PyTorch's initial weights here. With a bias of 0, padded pixels
        # would reach every norm as zeros, and each norm would multiply their gradient
        # by 300.
        self.stem.proj.reset_parameters()
        self.freeze()

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights)


MM_NAMES = {  # names in mmdet's, mmseg's and mmpretrain's Swin, and ours
    'patch_embed.projection.': 'stem.proj.',
    '.attn.w_msa.': '.attn.',
    '.ffn.layers.0.0.': '.mlp.fc1.',
    '.ffn.layers.1.': '.mlp.fc2.',
}
SWIN_BUFFERS = 'relative_position_index', 'attn_mask'  # derived from the window size


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of a Swin Transformer to the names of `HMaiT`.

    They may be the official repository's, timm's, mmdet's, mmseg's or mmpretrain's.
    Names of `HMaiT` and unknown ones stay; the latter are reported when the weights are
    loaded.
    """
    if 'stem.proj.weight' in state_dict:
        return dict(state_dict)
    stages = [name for name in state_dict if name.startswith(('layers.', 'stages.'))]
    last = max((int(name.split('.')[1]) for name in stages), default=0)
    # The official repository merges at the end of a stage, timm at the start.
    early = any(name.split('.')[1:3] == ['0', 'downsample'] for name in stages)
    converted = {}
    for name, value in state_dict.items():
        if name.endswith(SWIN_BUFFERS):
            continue
        if name.startswith('stages.') and '.downsample.' in name:
            # Unfolded channels are (C, y, x), joined ones (x, y, C).
            value = value.unflatten(-1, (-1, 2, 2)).transpose(-3, -1).flatten(-3)
        for theirs, ours in MM_NAMES.items():
            name = name.replace(theirs, ours)
        match name.split('.'):
            case ['layers' | 'stages', stage, *rest]:
                later = early and rest[0] == 'downsample'
                name = '.'.join(['stages', str(int(stage) + later), *rest])
            case ['patch_embed', *rest]:
                name = '.'.join(['stem', *rest])
            case ['absolute_pos_embed']:
                name = 'stem.pos_embed'
            case [first, leaf] if re.fullmatch(r'norm\d*', first):
                name = f'out_norms.{first.removeprefix("norm") or last}.{leaf}'
        converted[name] = value
    return converted
