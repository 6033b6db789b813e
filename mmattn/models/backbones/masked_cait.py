"""MaskedCaiT: CaiT whose attention heads are masked to neighborhoods, in part.

The "Masked CaiT" of Table 7 of Li, Ardestani and Hassoun, "MaiT: Leverage Attention
Masks for More Efficient Image Transformers", https://arxiv.org/abs/2207.03006. CaiT
(Touvron et al., "Going deeper with Image Transformers",
https://arxiv.org/abs/2103.17239) is timm's, and its weights load; only the forward of
its talking-heads attention is ours.

The paper does not say which layers are masked, nor where the mask acts between the two
mixtures of talking heads. Our choice is 'sch1', and to mask the mixed scores right
before the softmax, as equation 2 does. The second mixture, after the softmax, then
mixes masked and global weights, so attention stays dense, N x N.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.models.layers import (
    PatchStem,
    resolve_masking,
)
from mmattn.models.layers.masked.attention import alpha_logit, check_mask
from mmattn.models.layers.masked.masking import LayerEntry
from mmattn.ops import neighborhood_mask
from mmattn.ops.masked_attention import resolve_heads
from mmattn.registry import MODELS

from . import mait
from .base_backbone import BaseBackbone
from .mait import OUT_TYPES


class MaskedTalkingHeads(nn.Module):
    """CaiT's talking-heads attention with masked heads; (B, H, W, C) in and out.

    Args:
        embed_dims: channels C.
        num_heads: heads; `embed_dims` is a multiple.
        qkv_bias: whether queries, keys and values have biases.
        masked_heads: indices of the masked heads among the mixed scores.
        soft, alpha_init, kernel_size, mask_fill: see `MaskedAttention`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        *,
        masked_heads: Sequence[int] = (),
        soft: bool = False,
        alpha_init: float = 0.5,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
    ):
        super().__init__()
        check_mask(kernel_size, mask_fill, soft)
        self.num_heads = num_heads
        self.scale = (embed_dims // num_heads) ** -0.5
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_l = nn.Linear(num_heads, num_heads)
        self.proj_w = nn.Linear(num_heads, num_heads)
        self.masked_heads = resolve_heads(masked_heads, num_heads)
        self.kernel_size = kernel_size
        self.mask_fill = mask_fill
        is_masked = torch.tensor(
            [head in self.masked_heads for head in range(num_heads)]
        )
        self.register_buffer('is_masked', is_masked, persistent=False)
        logit = alpha_logit(self.masked_heads, soft, alpha_init)
        self.register_parameter('alpha_logit', logit)

    def no_weight_decay(self) -> set[str]:
        return {'alpha_logit'}

    @property
    def alpha(self) -> Tensor | None:
        """Alpha of each soft-masked head, in (0, 1); None for a hard mask."""
        return None if self.alpha_logit is None else self.alpha_logit.sigmoid()

    def mask_scores(self, scores: Tensor, grid: Sequence[int]) -> Tensor:
        """Mask scores (B, M, N, N), where N = H * W for `grid` (H, W)."""
        if not self.masked_heads:
            return scores
        near = neighborhood_mask(grid, self.kernel_size, device=scores.device)
        outside = self.is_masked[:, None, None] & ~near  # (M, N, N)
        if self.alpha is None:
            fill = 0.0 if self.mask_fill == 'zero' else float('-inf')
            return scores.masked_fill(outside, fill)
        alpha = self.alpha.to(scores.dtype)
        alpha = alpha.new_ones(len(self.is_masked)).masked_scatter(
            self.is_masked, alpha
        )
        return torch.where(outside, alpha[:, None, None] * scores, scores)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        qkv = self.qkv(x).view(B, H * W, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, M, N, D)
        scores = _mix_heads(self.proj_l, q * self.scale @ k.mT)  # (B, M, N, N)
        weights = self.mask_scores(scores, (H, W)).softmax(dim=-1)
        out = _mix_heads(self.proj_w, weights) @ v
        return self.proj(out.transpose(1, 2).reshape(B, H, W, C))


def _mix_heads(linear: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer to the heads of (B, M, N, N)."""
    return linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ClassAttention(nn.Module):
    """The class token and the blocks in which it attends to the patches."""

    def __init__(self, cls_token: nn.Parameter, blocks: nn.ModuleList):
        super().__init__()
        self.cls_token = cls_token
        self.blocks = blocks

    def no_weight_decay(self) -> set[str]:
        return {'cls_token'}


@MODELS.register_module()
class MaskedCaiT(BaseBackbone):
    """CaiT with masked heads; without masks, timm's CaiT.

    Args:
        arch: 'xxs24', 'xs24', 's24', or a dict with `embed_dims`, `depth`, `num_heads`.
        masking: 'none', 'sch1', 'sch2', 'soft', or a list with an entry for each layer,
            see `mmattn.models.layers.resolve_masking`. The class attention layers have
            no masks.
        alpha_init: initial alpha of soft masks, in (0, 1).
        kernel_size: width of the masks in patches.
        mask_fill: 'zero' or 'neg_inf'; see `ops.masked_attention`.
        layer_scale: initial value of LayerScale; CaiT's at 24 layers is 1e-5.
        patch_size: side of a patch.
        img_size: image side, or (height, width), that the position embedding is made
            for. It is resized for other grids (bicubic), at run time and on load.
        drop_path_rate: stochastic depth of every block, as in CaiT.
        out_type: 'featmap' or 'cls_token', see below. With 'featmap' the model has
            neither the class token nor its layers.
        out_indices: blocks whose outputs are returned; -1 is the last one. The last
            output goes through CaiT's norm, each of the others through one of its own.
        frozen_stages: -1 freezes nothing, 0 the patch and position embedding, n those
            and n blocks. Frozen parts stay in eval mode.
        in_channels, with_cp, compile, init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size, padded right and below to whole patches,
        and returns a tuple. For 'featmap' it has a map
        (B, C, ceil(H / patch_size), ceil(W / patch_size)) for each of `out_indices`;
        for 'cls_token', the class token (B, C) that two class attention layers compute
        from the only block of `out_indices`.

    Raises:
        ValueError: unknown arch, masking, setting or block index.
    """

    arch_zoo = {
        'xxs24': dict(embed_dims=192, depth=24, num_heads=4),
        'xs24': dict(embed_dims=288, depth=24, num_heads=6),
        's24': dict(embed_dims=384, depth=24, num_heads=8),
    }

    def __init__(
        self,
        arch: str | Mapping = 'xxs24',
        *,
        masking: str | Sequence[LayerEntry] = 'sch1',
        alpha_init: float = 0.5,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
        layer_scale: float = 1e-5,
        patch_size: int = 16,
        img_size: int | tuple[int, int] = 224,
        out_type: str = 'featmap',
        out_indices: int | tuple[int, ...] = -1,
        **frame,
    ):
        # Here, since it imports all of timm's models.
        from timm.models.cait import Cait

        arch = self.resolve_arch(arch)
        embed_dims, depth = arch['embed_dims'], arch['depth']
        levels = [embed_dims] * depth, [patch_size] * depth
        super().__init__(*levels, out_indices=out_indices, **frame)
        check_choice('out_type', out_type, OUT_TYPES)
        if out_type == 'cls_token' and len(self.out_indices) > 1:
            raise UserError(
                f"out_type='cls_token' takes one of out_indices, got {out_indices}"
            )
        self.out_type = out_type
        self.stem = PatchStem(self.in_channels, embed_dims, patch_size, img_size)
        maskings = iter(resolve_masking(masking, depth, arch['num_heads']))

        def attention(
            dim: int, num_heads: int, qkv_bias: bool, **dropouts
        ) -> nn.Module:
            masked = next(maskings)
            return MaskedTalkingHeads(
                dim,
                num_heads,
                qkv_bias,
                masked_heads=masked.heads,
                soft=masked.soft,
                alpha_init=alpha_init,
                kernel_size=kernel_size,
                mask_fill=mask_fill,
            )

        cait = Cait(
            img_size=tuple(side * patch_size for side in self.stem.grid_size),
            patch_size=patch_size,
            in_chans=self.in_channels,
            num_classes=0,
            embed_dim=embed_dims,
            # Blocks above the last returned one would never get a gradient.
            depth=self.out_indices[-1] + 1,
            num_heads=arch['num_heads'],
            drop_path_rate=self.drop_path_rate,
            init_values=layer_scale,
            attn_block=attention,
        )
        self.blocks = nn.ModuleList(cait.blocks)
        self.build_out_norms(eps=1e-6)
        if out_type == 'cls_token':
            self.class_attention = ClassAttention(
                cait.cls_token, cait.blocks_token_only
            )
        self.freeze()

    def to_output(self, x: Tensor, level: int) -> Tensor:
        if self.out_type == 'featmap':
            return super().to_output(x, level)
        x, token = x.flatten(1, 2), self.class_attention.cls_token
        token = token.expand(x.shape[0], -1, -1)
        for block in self.class_attention.blocks:
            token = self.run(block, x, token)
        return super().to_output(token, level).squeeze(-1)

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights, self.out_indices[-1])


CLASS_ATTENTION = {
    'stem.cls_token': 'class_attention.cls_token',
    'blocks_token_only.': 'class_attention.blocks.',
}


def convert_state_dict(
    state_dict: Mapping[str, Tensor], last: int | None = None
) -> dict[str, Tensor]:
    """Convert weights of timm's CaiT to the names of `MaskedCaiT`; see `MaiT`'s."""
    converted = {}
    for name, value in mait.convert_state_dict(state_dict, last).items():
        for theirs, ours in CLASS_ATTENTION.items():
            name = name.replace(theirs, ours)
        converted[name] = value
    return converted
