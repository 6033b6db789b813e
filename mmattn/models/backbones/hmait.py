"""H-MaiT: Swin's pyramid with masked and global heads in place of its windows.

Li, Ardestani and Hassoun, "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, section 5.2. No official code is known.
The frame is Swin Transformer (Liu et al., https://arxiv.org/abs/2103.14030), whose
checkpoints load unchanged; parameters have the names of timm's.

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

from mmattn.errors import UserError
from mmattn.models.checkpoints.load_hook import load_hook
from mmattn.models.layers import (
    DropPath,
    MaskedAttention,
    PointwiseLinear,
    PointwiseMlp,
    RelativeMaskedAttention,
    fit_on_load,
    grid_of,
    init_linear_and_conv,
    pad_to_patches,
    pos_embed_map,
)
from mmattn.registry import MODELS

from .base_backbone import presets
from .pyramid import Pyramid

PATCH_SIZE = 4
POSITIONS = ('relative', 'full', 'absolute', 'none')


class HMaiTBlock(nn.Module):
    """Swin's block with masked attention; shape (B, H, W, C) in and out."""

    def __init__(self, embed_dims: int, attn: MaskedAttention, drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims)
        self.mlp = PointwiseMlp(embed_dims, 4 * embed_dims)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[1:3]
        mixed = self.attn(self.norm1(x).flatten(1, 2), grid).unflatten(1, grid)
        x = x + self.drop_path(mixed)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    """Normed patches (B, ceil(H / 4), ceil(W / 4), C') of images (B, H, W, C)."""

    def __init__(self, in_channels: int, embed_dims: int):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, PATCH_SIZE, stride=PATCH_SIZE)
        self.norm = nn.LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(pad_to_patches(x.permute(0, 3, 1, 2), PATCH_SIZE))
        return self.norm(x.permute(0, 2, 3, 1))


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
class HMaiT(Pyramid):
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
            compile, init_cfg: see `Pyramid`.

    Forward:
        Takes images (B, 3, H, W) of any size, padded right and below, and returns a
        tuple of maps (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32.

    Raises:
        ValueError: unknown arch, position, stage index or setting.
    """

    arch_zoo = presets(
        ('embed_dims', 'depths', 'num_heads', 'masked_heads'),
        {
            'nano': ((32, 64, 160, 256), (2, 2, 6, 2), (1, 2, 5, 8), (1, 2, 2, 0)),
            'tiny': ((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (3, 6, 4, 0)),
            'small': ((96, 192, 384, 768), (2, 2, 18, 2), (3, 6, 12, 24), (3, 6, 4, 0)),
        },
    )

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        in_channels: int = 3,
        masked_heads: Sequence[int] | None = None,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
        position: str = 'relative',
        img_size: int | tuple[int, int] = 224,
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
        if position not in POSITIONS:
            raise UserError(
                f'HMaiT: position must be one of {POSITIONS}, got {position!r}'
            )
        grids = [grid_of(img_size, PATCH_SIZE << i) for i in range(len(depths))]

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

        def downsample(stage: int) -> nn.Module | None:
            return PatchMerging(*embed_dims[stage - 1 : stage + 1]) if stage else None

        def block(stage: int, index: int, drop_path: float) -> nn.Module:
            return HMaiTBlock(embed_dims[stage], attention(stage), drop_path)

        self.patch_embed = PatchEmbed(in_channels, embed_dims[0])
        self.register_parameter('pos_embed', None)
        if position == 'absolute':
            self.grid_size = grids[0]
            H, W = grids[0]
            self.pos_embed = nn.Parameter(torch.empty(1, H * W, embed_dims[0]))
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.layers = self.build_layers(downsample, block, drop_path_rate)
        self.out_norms = self.build_out_norms(nn.LayerNorm, out_norm)
        self.apply(init_linear_and_conv)
        # Swin keeps PyTorch's initial weights here. With a bias of 0, padded pixels
        # would reach every norm as zeros, and each norm would multiply their gradient
        # by 300.
        self.patch_embed.proj.reset_parameters()
        self.register_load_state_dict_pre_hook(take_swins_names)
        if position == 'absolute':
            fit_on_load(self, 'pos_embed', self.grid_size, dim=1)
        self.freeze(frozen_stages)

    def stages(self):
        stages = super().stages()
        if self.pos_embed is not None:
            stages[0].append(self.pos_embed)
        return stages

    def add_positions(self, x: Tensor, stage: int) -> Tensor:
        if stage or self.pos_embed is None:
            return x
        return x + pos_embed_map(self.pos_embed, self.grid_size, x.shape[1:3])


MM_NAMES = {  # names in mmdet's, mmseg's and mmpretrain's Swin, and ours
    'stages.': 'layers.',
    'patch_embed.projection.': 'patch_embed.proj.',
    '.attn.w_msa.': '.attn.',
    '.ffn.layers.0.0.': '.mlp.fc1.',
    '.ffn.layers.1.': '.mlp.fc2.',
}
SWIN_BUFFERS = 'relative_position_index', 'attn_mask'  # derived from the window size


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of a Swin Transformer to the names of `HMaiT`.

    They may be the official repository's, timm's, mmdet's, mmseg's or mmpretrain's.
    Unknown names stay, and are reported when the weights are loaded.
    """
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
        first, *rest = name.split('.')
        if early and rest[1:2] == ['downsample']:
            name = '.'.join([first, str(int(rest[0]) + 1), *rest[1:]])
        elif first == 'absolute_pos_embed':
            name = 'pos_embed'
        elif re.fullmatch(r'norm\d*', first):
            name = '.'.join(
                ['out_norms', first.removeprefix('norm') or str(last), *rest]
            )
        converted[name] = value
    return converted


@load_hook
def take_swins_names(
    module: nn.Module, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    return convert_state_dict(weights)
