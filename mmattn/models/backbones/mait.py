"""MaiT: DeiT whose attention heads are masked to neighborhoods, in part.

Li, Ardestani and Hassoun, "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, Tables 2 to 8. No official code is
known. Except for the masks it is DeiT (Touvron et al.,
https://arxiv.org/abs/2012.12877). Blocks have the names of timm's `VisionTransformer`
and `VisionTransformerDistilled`, and weights of DeiT load.

The paper gives channels, heads, depths, masking schemes, and where LayerScale and
distillation are used. It prints 3 heads for 'xsmall'; CaiT-XS of the same width has 6.
Our choices are layer 8 of 'sch2' and the schemes at depths other than 24 (see
`mmattn.models.layers.masked.masking`), the soft mask's parameter and initial value (see
`MaskedAttention`), and 1e-5, CaiT's at this depth, as LayerScale's initial value.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from mmattn.errors import check_choice
from mmattn.models.layers import (
    DropPath,
    MaskedAttention,
    PatchStem,
    PointwiseMlp,
    RandomMaskedAttention,
    drop_path_rates,
    init_linear_and_conv,
    pos_embed_tokens,
    resolve_masking,
)
from mmattn.models.layers.masked.masking import LayerEntry
from mmattn.registry import MODELS

from .base_backbone import BaseBackbone

OUT_TYPES = 'featmap', 'cls_token'


class LayerScale(nn.Module):
    """Learned factor of each channel, with the name of timm's parameter."""

    def __init__(self, embed_dims: int, init_value: float):
        super().__init__()
        self.gamma = nn.Parameter(init_value * torch.ones(embed_dims))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class MaiTBlock(nn.Module):
    """DeiT's block, with LayerScale from `layer_scale` on unless that is None."""

    def __init__(
        self,
        embed_dims: int,
        attention: nn.Module,
        drop_path: float,
        layer_scale: float | None,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = attention
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.mlp = PointwiseMlp(embed_dims, 4 * embed_dims)
        self.ls1, self.ls2 = (
            nn.Identity()
            if layer_scale is None
            else LayerScale(embed_dims, layer_scale)
            for _ in range(2)
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), grid)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class TokenStem(PatchStem):
    """Patches behind a class token and, if asked, a distillation token."""

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        img_size: int | Sequence[int],
        distilled: bool,
    ):
        num_special = 2 if distilled else 1
        super().__init__(in_channels, embed_dims, patch_size, img_size, num_special)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dims))
        dist_token = nn.Parameter(torch.empty(1, 1, embed_dims)) if distilled else None
        self.register_parameter('dist_token', dist_token)
        for token in self.tokens():
            nn.init.trunc_normal_(token, std=0.02)

    def tokens(self) -> list[nn.Parameter]:
        tokens = [self.cls_token, self.dist_token]
        return [token for token in tokens if token is not None]

    def no_weight_decay(self) -> set[str]:
        return {'cls_token', 'dist_token', 'pos_embed'}

    def forward(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        """Return tokens (B, N, C) and the patches' grid."""
        x = self.embed(x)
        grid = x.shape[1:3]
        special = [token.expand(x.shape[0], -1, -1) for token in self.tokens()]
        positions = pos_embed_tokens(
            self.pos_embed, self.grid_size, grid, self.num_special
        )
        return torch.cat([*special, x.flatten(1, 2)], dim=1) + positions, grid


@MODELS.register_module()
class MaiT(BaseBackbone):
    """Masked attention image Transformer; without masks, DeiT.

    Args:
        arch: 'xtiny', 'tiny', 'xsmall', 'small', or a dict with `embed_dims`, `depth`,
            `num_heads`.
        masking: 'none', 'sch1', 'sch2', 'soft', or a list with an entry for each layer:
            the number of masked heads or their indices, 'soft', or a dict of `heads`
            and `soft`; see `mmattn.models.layers.masked.masking.resolve_masking`.
        alpha_init: initial alpha of soft masks, in (0, 1). The paper does not state it
            and finds that it matters for 'xsmall'; a half is our choice.
        depth, num_heads: None takes the arch's, which are the paper's 24 layers.
        kernel_size: width of the masks in patches, 3 or 5 in the paper.
        mask_fill: 'zero' (equation 2) or 'neg_inf'; see `ops.masked_attention`.
        random_mask_seed: None masks to neighborhoods. A number masks to as many random
            places, the control of section 5.6; see `RandomMaskedAttention`.
        layer_scale: initial value of LayerScale, None for no LayerScale. The paper's
            Table 7 has it on 'xtiny', 'xsmall' and 'small'; 1e-5 is our choice.
        distilled: whether a distillation token follows the class token.
        patch_size: side of a patch.
        img_size: image side, or (height, width), that the position embedding is made
            for. It is resized for other grids (bicubic), at run time and on load,
            except for the special tokens' entries.
        drop_path_rate: stochastic depth of the last block.
        drop_path_schedule: 'linear' grows from 0 at the first block; 'constant' is the
            same for all blocks, as in the paper's 'small'.
        out_type: 'featmap' or 'cls_token', see below.
        out_indices: blocks whose outputs are returned; -1 is the last one. The last
            output goes through DeiT's norm, each of the others through one of its own.
        frozen_stages: -1 freezes nothing, 0 the patch and position embedding and the
            special tokens, n those and n blocks. Frozen parts stay in eval mode.
        backend: backend of the operator; None takes the fastest.
        in_channels, with_cp, compile, init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size, padded right and below to whole patches,
        and returns a tuple, one entry for each of `out_indices`: maps
        (B, C, ceil(H / patch_size), ceil(W / patch_size)) for 'featmap'; for
        'cls_token' the class token (B, C), as mmpretrain's `LinearClsHead` takes it, or
        the pair of class and distillation token, as its `DeiTClsHead` does.

    Raises:
        ValueError: unknown arch, masking, setting or block index.
    """

    arch_zoo = {
        'xtiny': dict(embed_dims=144, depth=24, num_heads=3),
        'tiny': dict(embed_dims=192, depth=24, num_heads=3),
        'xsmall': dict(embed_dims=288, depth=24, num_heads=3),
        'small': dict(embed_dims=384, depth=24, num_heads=6),
    }

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        masking: str | Sequence[LayerEntry] = 'sch1',
        alpha_init: float = 0.5,
        depth: int | None = None,
        num_heads: int | None = None,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
        random_mask_seed: int | None = None,
        layer_scale: float | None = None,
        distilled: bool = False,
        patch_size: int = 16,
        img_size: int | tuple[int, int] = 224,
        drop_path_schedule: str = 'linear',
        out_type: str = 'featmap',
        out_indices: int | tuple[int, ...] = -1,
        backend: str | None = None,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims = arch['embed_dims']
        depth = arch['depth'] if depth is None else depth
        num_heads = arch['num_heads'] if num_heads is None else num_heads
        levels = [embed_dims] * depth, [patch_size] * depth
        super().__init__(*levels, out_indices=out_indices, **frame)
        check_choice('out_type', out_type, OUT_TYPES)
        self.out_type = out_type
        self.stem = TokenStem(
            self.in_channels, embed_dims, patch_size, img_size, distilled
        )
        attention = MaskedAttention
        if random_mask_seed is not None:
            attention = partial(RandomMaskedAttention, seed=random_mask_seed)
        self.blocks = nn.ModuleList(
            MaiTBlock(
                embed_dims,
                attention(
                    embed_dims,
                    num_heads,
                    masked.heads,
                    soft=masked.soft,
                    alpha_init=alpha_init,
                    kernel_size=kernel_size,
                    num_special=self.stem.num_special,
                    mask_fill=mask_fill,
                    backend=backend,
                ),
                rate,
                layer_scale,
            )
            for masked, rate in zip(
                resolve_masking(masking, depth, num_heads),
                drop_path_rates(self.drop_path_rate, depth, drop_path_schedule),
                strict=True,
            )
        )
        # Blocks above the last returned one would never get a gradient.
        del self.blocks[self.out_indices[-1] + 1 :]
        self.build_out_norms(eps=1e-6)
        self.apply(init_linear_and_conv)
        self.freeze()

    def forward_levels(self, x: Tensor, indices: Sequence[int]) -> list[Tensor]:
        """Return maps (B, H, W, C), or special tokens (B, S, C) for 'cls_token'."""
        x, grid = self.stem(x.movedim(1, -1))
        tokens = [x] if -1 in indices else []
        for level, block in enumerate(self.blocks[: indices[-1] + 1]):
            x = self.run(block, x, grid)
            if level in indices:
                tokens.append(x)
        start = self.stem.num_special
        if self.out_type == 'cls_token':
            return [x[:, :start] for x in tokens]
        return [x[:, start:].unflatten(1, tuple(grid)) for x in tokens]

    def to_output(self, x: Tensor, level: int) -> Tensor | tuple[Tensor, Tensor]:
        x = super().to_output(x, level)
        if self.out_type == 'featmap':
            return x
        return x.squeeze(-1) if self.stem.num_special == 1 else x.unbind(-1)

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights, self.out_indices[-1])


DEIT_NAMES = {
    r'patch_embed\.': 'stem.',
    r'(pos_embed|cls_token|dist_token)$': r'stem.\1',
}


def convert_state_dict(
    state_dict: Mapping[str, Tensor], last: int | None = None
) -> dict[str, Tensor]:
    """Convert weights of timm's DeiT to the names of `MaiT`; other names stay.

    Args:
        state_dict: the weights.
        last: the block whose output goes through DeiT's norm; None takes DeiT's last.
    """
    if last is None:
        blocks = [
            name.split('.')[1] for name in state_dict if name.startswith('blocks')
        ]
        last = max(map(int, blocks), default=0)
    names = DEIT_NAMES | {r'norm\.': f'out_norms.{last}.'}
    converted = {}
    for name, value in state_dict.items():
        for theirs, ours in names.items():
            name = re.sub(f'^{theirs}', ours, name)
        converted[name] = value
    return converted
