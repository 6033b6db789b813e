"""PVT: a pyramid of Transformer stages whose attention sees a reduced map.

Wang et al., "Pyramid Vision Transformer: A Versatile Backbone for Dense Prediction
without Convolutions", https://arxiv.org/abs/2102.12122. Official code:
https://github.com/whai362/PVT, Apache-2.0.

Depths are those of the official code, which give the paper's parameters; its Table 1
prints other ones for stage 2 of Small and Medium. As there, the norms of the blocks
have an epsilon of 1e-6, and those of patches and of reduced maps one of 1e-5. Tables
of positions are resized for every other grid, also one with as many pixels.

Channels come last inside the network.
"""

from collections.abc import Mapping
from math import isqrt, prod

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.checkpoints.pvt import (
    convert_state_dict,
    layout_of,
    take_any_layout,
    to_official_state_dict,
)
from mmattn.models.layers import (
    DropPath,
    PointwiseMlp,
    SpatialReductionAttention,
    fit_on_load,
    init_linear_and_conv,
    pos_embed_map,
    pos_embed_tokens,
)
from mmattn.registry import MODELS

from .pyramid import Pyramid, Stage

__all__ = ['PVT', 'convert_state_dict', 'layout_of', 'to_official_state_dict']

OUT_TYPES = 'featmap', 'cls_token'
EPSILON = 1e-6


class PVTBlock(nn.Module):
    """Attention and MLP behind norms, with residuals.

    The shape is (B, H, W, C) in and out, or (B, N, C) if its parts take that.
    """

    def __init__(
        self, embed_dims: int, attn: nn.Module, mlp: nn.Module, drop_path: float
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=EPSILON)
        self.attn = attn
        self.norm2 = nn.LayerNorm(embed_dims, eps=EPSILON)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    """Strided convolution, with the settings `conv`, and norm; channels come last."""

    def __init__(self, in_channels: int, embed_dims: int, **conv: int):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, **conv)
        self.norm = nn.LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


def drop_loaded_token(module: Stage, state_dict: dict, prefix: str, *args):
    """Hook before loading: drop the class token's position for a stage without one."""
    key = prefix + 'pos_embed'
    table = state_dict.get(key)
    if table is None or table.shape == module.pos_embed.shape:
        return
    count = table.shape[1] - 1
    if count == module.pos_embed.shape[1] or isqrt(count) ** 2 == count:
        state_dict[key] = table[:, 1:]


@MODELS.register_module()
class PVT(Pyramid):
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
            `Pyramid`.

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
        in_channels: int = 3,
        img_size: int | tuple[int, int] = 224,
        out_type: str = 'featmap',
        drop_path_rate: float = 0.0,
        out_indices: int | tuple[int, ...] | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        compile: bool | Mapping = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        if out_type not in OUT_TYPES:
            raise UserError(
                f'PVT: out_type must be one of {OUT_TYPES}, got {out_type!r}'
            )
        with_token = out_type == 'cls_token'
        if with_token and out_indices is None:
            out_indices = -1
        super().__init__(arch, out_indices, with_cp, compile, init_cfg, in_channels)
        self.out_type = out_type
        arch = self.arch
        embed_dims, last = arch['embed_dims'], len(arch['depths']) - 1
        if with_token and (self.out_indices[-1] != last or arch['sr_ratios'][-1] != 1):
            raise UserError(
                "PVT: the class token of out_type='cls_token' is in the last stage, "
                f'whose sr_ratio must be 1, got out_indices {out_indices} and '
                f'sr_ratios {arch["sr_ratios"]}'
            )
        sides = (img_size,) * 2 if isinstance(img_size, int) else img_size
        self.grid_sizes = [
            tuple(side // (4 << stage) for side in sides) for stage in range(last + 1)
        ]
        if not all(map(all, self.grid_sizes)):
            raise UserError(
                f'PVT: img_size must be {4 << last} or more a side, got {img_size}'
            )

        def downsample(stage: int) -> nn.Module | None:
            dims = embed_dims[stage - 1 : stage + 1]
            return PatchEmbed(*dims, kernel_size=2, stride=2) if stage else None

        def block(stage: int, index: int, drop_path: float) -> nn.Module:
            channels = embed_dims[stage]
            attn = SpatialReductionAttention(
                channels, arch['num_heads'][stage], arch['sr_ratios'][stage]
            )
            mlp = PointwiseMlp(channels, arch['mlp_ratios'][stage] * channels)
            return PVTBlock(channels, attn, mlp, drop_path)

        self.patch_embed = PatchEmbed(
            in_channels, embed_dims[0], kernel_size=4, stride=4
        )
        self.layers = self.build_layers(downsample, block, drop_path_rate)
        for i, layer in enumerate(self.layers):
            num_tokens = prod(self.grid_sizes[i]) + (with_token and i == last)
            layer.pos_embed = nn.Parameter(torch.empty(1, num_tokens, embed_dims[i]))
        self.register_parameter('cls_token', None)
        self.norm = None
        if with_token:
            self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dims[-1]))
            self.norm = nn.LayerNorm(embed_dims[-1], eps=EPSILON)
        self.out_norms = self.build_out_norms(nn.LayerNorm, out_norm=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear_and_conv(module)
        for name, param in self.named_parameters():
            if name.endswith(('pos_embed', 'cls_token')):
                nn.init.trunc_normal_(param, std=0.02)
        self.register_load_state_dict_pre_hook(take_any_layout)
        for i, layer in enumerate(self.layers):
            has_token = self._has_token(i)
            if not has_token:
                layer.register_load_state_dict_pre_hook(drop_loaded_token)
            fit_on_load(
                layer,
                'pos_embed',
                self.grid_sizes[i],
                dim=1,
                num_special=int(has_token),
                mode='bilinear',
            )
        self.freeze(frozen_stages)

    def stages(self):
        stages = super().stages()
        stages[0].append(self.layers[0].pos_embed)
        for stage, layer in zip(stages[2:], self.layers[1:], strict=True):
            stage.insert(1, layer.pos_embed)
        if self.cls_token is not None:
            stages[-1].append(self.cls_token)
        return stages

    @property
    def min_side(self):
        return self.levels()[-1][1]  # downsampling drops what is beyond a multiple

    def add_positions(self, x: Tensor, stage: int) -> Tensor:
        """Add a stage's table, and join the class token: (B, 1 + N, C) in its stage."""
        table, old_grid = self.layers[stage].pos_embed, self.grid_sizes[stage]
        grid = x.shape[1:3]
        if not self._has_token(stage):
            return x + pos_embed_map(table, old_grid, grid, mode='bilinear')
        token = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat([token, x.flatten(1, 2)], dim=1)
        return x + pos_embed_tokens(table, old_grid, grid, 1, mode='bilinear')

    def output(self, x: Tensor, stage: int) -> Tensor:
        return (
            self.norm(x[:, 0]) if self._has_token(stage) else super().output(x, stage)
        )

    def _has_token(self, stage: int) -> bool:
        return self.cls_token is not None and stage == len(self.layers) - 1
