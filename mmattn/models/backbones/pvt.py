"""PVT: a pyramid of Transformer stages whose attention sees a reduced map.

Wang et al., "Pyramid Vision Transformer: A Versatile Backbone for Dense Prediction
without Convolutions", https://arxiv.org/abs/2102.12122. Official code:
https://github.com/whai362/PVT, Apache-2.0.

Depths follow the official code, which give the paper's parameters; its Table 1
prints other ones for stage 2 of Small and Medium. As there, the norms of the blocks
have an epsilon of 1e-6, and the norms of patches and reduced maps 1e-5. Tables
of positions are resized for every other grid, also one with as many pixels.

Channels come last inside the network.
"""

from collections.abc import Mapping, Sequence
from math import isqrt, prod

import torch
from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.models.layers import (
    PointwiseMlp,
    SpatialReductionAttention,
    fit_on_load,
    init_linear_and_conv,
    pos_embed_map,
    pos_embed_tokens,
)
from mmattn.registry import MODELS
from mmattn.weights.layouts.pvt import (
    convert_known_layouts,
    convert_state_dict,
    layout_of,
    to_official_state_dict,
)

from .base_backbone import BaseBackbone
from .pvt_v2 import EPSILON, Block, PatchEmbed

__all__ = ['PVT', 'convert_state_dict', 'layout_of', 'to_official_state_dict']

OUT_TYPES = 'featmap', 'cls_token'


class PositionedPatches(PatchEmbed):
    """Patches with learned positions (bilinear), behind a class token if asked.

    It maps (B, H, W, C) to (B, H // stride, W // stride, C'), or with the token to
    (B, 1 + N, C').
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        stride: int,
        grid_size: Sequence[int],
        with_token: bool,
    ):
        super().__init__(in_channels, embed_dims, kernel_size=stride, stride=stride)
        self.grid_size = grid_size
        num_special = int(with_token)
        num_tokens = num_special + prod(grid_size)
        self.pos_embed = nn.Parameter(torch.empty(1, num_tokens, embed_dims))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.register_parameter('cls_token', None)
        if with_token:
            self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dims))
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        else:
            self.register_load_state_dict_pre_hook(drop_loaded_token)
        sizes = dict(size=grid_size, dim=1, num_special=num_special)
        fit_on_load(self, 'pos_embed', mode='bilinear', **sizes)

    def no_weight_decay(self) -> set[str]:
        return {'pos_embed', 'cls_token'}

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        grids = self.grid_size, x.shape[1:3]
        if self.cls_token is None:
            positions = pos_embed_map(self.pos_embed, *grids, mode='bilinear')
            return x + positions.to(x.dtype)  # autocast's, as the maps after it
        token = self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype)
        x = torch.cat([token, x.flatten(1, 2)], dim=1)
        positions = pos_embed_tokens(self.pos_embed, *grids, 1, mode='bilinear')
        return x + positions.to(x.dtype)


def drop_loaded_token(module: PositionedPatches, state_dict: dict, prefix: str, *args):
    """Drop, before loading, the class token's position for a stage without one."""
    key = prefix + 'pos_embed'
    table = state_dict.get(key)
    if table is None or table.shape == module.pos_embed.shape:
        return
    count = table.shape[1] - 1
    if count == module.pos_embed.shape[1] or isqrt(count) ** 2 == count:
        state_dict[key] = table[:, 1:]


@MODELS.register_module()
class PVT(BaseBackbone):
    """Pyramid Vision Transformer.

    Args:
        arch: 'tiny', 'small', 'medium', 'large', 'nano' (ours, for demos and tests), or
            a dict with `embed_dims`, `depths`, `num_heads`, `mlp_ratios` and
            `sr_ratios` of the four stages.
        img_size: image side, or (height, width), that the tables of positions are made
            for. They are resized for other sizes (bilinear), at run time and on load.
        out_type: 'featmap' for the maps of `out_indices`, or 'cls_token' for a class
            token in the last stage, which is normed and returned in place of that
            stage's map.
        out_indices: stages whose maps are returned; None returns all, or the class
            token alone.
        in_channels, drop_path_rate, frozen_stages, with_cp, compile, init_cfg: see
            `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of 32 or more pixels a side and returns a tuple of
        maps (B, C_i, H // s, W // s) of strides s = 4, 8, 16 and 32, without a norm.
        With 'cls_token' the last entry is (B, C), as mmpretrain's `LinearClsHead` takes
        it. Pixels beyond a multiple of the stride are ignored.

    Raises:
        ValueError: unknown arch, out_type or stage index.
    """

    arch_zoo = {
        'nano': dict(
            embed_dims=(32, 64, 160, 256),
            depths=(2, 2, 2, 2),
            num_heads=(1, 2, 5, 8),
            mlp_ratios=(8, 8, 4, 4),
            sr_ratios=(8, 4, 2, 1),
        ),
        **{
            name: dict(
                embed_dims=(64, 128, 320, 512),
                depths=depths,
                num_heads=(1, 2, 5, 8),
                mlp_ratios=(8, 8, 4, 4),
                sr_ratios=(8, 4, 2, 1),
            )
            for name, depths in (
                ('tiny', (2, 2, 2, 2)),
                ('small', (3, 4, 6, 3)),
                ('medium', (3, 4, 18, 3)),
                ('large', (3, 8, 27, 3)),
            )
        },
    }

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        img_size: int | tuple[int, int] = 224,
        out_type: str = 'featmap',
        out_indices: int | tuple[int, ...] | None = None,
        **frame,
    ):
        check_choice('PVT: out_type', out_type, OUT_TYPES)
        with_token = out_type == 'cls_token'
        if with_token and out_indices is None:
            out_indices = -1
        arch = self.resolve_arch(arch)
        embed_dims, depths = arch['embed_dims'], arch['depths']
        super().__init__(embed_dims, out_indices=out_indices, **frame)
        self.out_type = out_type
        end, last = self.out_indices[-1], len(depths) - 1
        if with_token and (end != last or arch['sr_ratios'][-1] != 1):
            raise UserError(
                "PVT: the class token of out_type='cls_token' is in the last stage, "
                f'whose sr_ratio must be 1, got out_indices {out_indices} and '
                f'sr_ratios {arch["sr_ratios"]}'
            )
        self.min_side = self.level_strides[end]  # what is beyond a multiple is dropped
        sides = (img_size,) * 2 if isinstance(img_size, int) else img_size
        grids = [
            tuple(side // stride for side in sides) for stride in self.level_strides
        ]
        if not all(map(all, grids)):
            raise UserError(
                f'PVT: img_size must be {4 << last} or more a side, got {img_size}'
            )

        def block(stage: int, drop_path: float) -> Block:
            channels, num_heads = embed_dims[stage], arch['num_heads'][stage]
            attn = SpatialReductionAttention(
                channels, num_heads, arch['sr_ratios'][stage]
            )
            mlp = PointwiseMlp(channels, arch['mlp_ratios'][stage] * channels)
            return Block(channels, attn, mlp, drop_path)

        def downsample(*channels: int, stride: int = 2) -> PositionedPatches:
            stage, grid = next(stages)
            has_token = with_token and stage == last
            return PositionedPatches(*channels, stride, grid, has_token)

        stages = enumerate(grids)
        self.stem = downsample(self.in_channels, embed_dims[0], stride=4)
        self.build_stages(depths, downsample, block)
        self.out_norms = nn.ModuleDict()
        if with_token:
            self.out_norms[str(last)] = nn.LayerNorm(embed_dims[-1], eps=EPSILON)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear_and_conv(module)
        self.freeze()

    def to_output(self, x: Tensor, level: int) -> Tensor:
        if x.dim() == 3:  # the class token and the map's tokens
            return super().to_output(x[:, :1], level).squeeze(-1)
        return super().to_output(x, level)

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_known_layouts(weights)
