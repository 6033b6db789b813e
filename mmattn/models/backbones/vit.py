"""ViT: plain vision transformer with dense, interactive or masked attention.

The network of Tables 2 to 4 and 8 of Kang, Yang and Ryu, "Interactive Multi-Head
Self-Attention with Linear Complexity", https://arxiv.org/abs/2402.17507: DeiT-T and
DeiT-S (Touvron et al., https://arxiv.org/abs/2012.12877) without a class token, which
the paper's FLOPs exclude; features are the mean of the tokens. Weights of DeiT load,
without the class token. `MaiT` has one.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.models.layers import (
    InteractiveAttention,
    MaskedAttention,
    PatchStem,
    PointwiseLinear,
    PointwiseMlp,
    dense_attention,
    drop_path_rates,
    init_linear_and_conv,
    resolve_masking,
)
from mmattn.models.layers.interactive_attention import (
    mixing_weights,
    reset_mixing_weights,
)
from mmattn.models.layers.masked.masking import LayerEntry
from mmattn.ops.landmark_attention import mixed_attention_reference
from mmattn.registry import MODELS

from . import mait
from .base_backbone import BaseBackbone
from .pvt_v2 import EPSILON, Block

POSITIONS = 'stem.pos_embed'


class SelfAttention(nn.Module):
    """Dense multi-head self-attention; shape (B, H, W, C) in and out."""

    def __init__(self, embed_dims: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.proj = PointwiseLinear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        qkv = self.qkv(x).view(B, H * W, 3, self.num_heads, C // self.num_heads)
        out = dense_attention(*qkv.unbind(2), (H, W))  # (B, N, M, D)
        return self.proj(out.reshape(B, H, W, C))


class InteractiveSelfAttention(SelfAttention):
    """Dense self-attention whose heads interact; shape (B, H, W, C) in and out.

    Equation 5 of the paper, interaction without decomposition: the attention matrix is
    `w2 softmax(w1 q k^T / sqrt(D))`, where w1 (E, M) and w2 (M, E) mix the heads and
    E = interact_expand * M. The paper's E is M. All matrices are in memory, so it grows
    with N^2; `InteractiveAttention` decomposes the matrix to avoid this.

    Raises:
        ValueError: `interact_expand` is None or less than 1.
    """

    def __init__(self, embed_dims: int, num_heads: int, interact_expand: int | None):
        super().__init__(embed_dims, num_heads)
        self.w1, self.w2 = mixing_weights(num_heads, interact_expand)
        reset_mixing_weights(self.w1, self.w2)

    def no_weight_decay(self) -> set[str]:
        return {'w1', 'w2'}

    @property
    def softmax_mixing(self) -> Tensor:
        """Weights (M, E) that mix the softmax's heads; `mmattn.analysis` reads them."""
        return self.w2

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        qkv = self.qkv(x).view(B, H * W, 3, self.num_heads, C // self.num_heads)
        out = mixed_attention_reference(*qkv.unbind(2), self.w1, self.w2)
        return self.proj(out.reshape(B, H, W, C))


@MODELS.register_module()
class ViT(BaseBackbone):
    """Plain ViT without class token.

    Args:
        arch: 'tiny', 'small', or a dict with `embed_dims`, `depth`, `num_heads`.
        attention: 'mhsa' (dense), 'mhsa_interaction' (dense with interaction between
            heads, equation 5), 'imhsa' (`InteractiveAttention`) or 'masked'
            (`MaskedAttention`). 'mhsa' and 'masked' can load each other's weights.
        patch_size: side of a patch; 16 and 8 in the paper.
        img_size: image side, or (height, width), that the position embedding is made
            for. It is resized for other grids (bicubic), at run time and on load.
        out_indices: blocks whose maps are returned; -1 is the last one. Each returned
            map ends in a layer norm of its own.
        frozen_stages: -1 freezes nothing, 0 the patch and position embedding, n those
            and n blocks. Frozen parts stay in eval mode.
        landmarks, interact_expand, local_kernel, gate: settings of 'imhsa', see
            `InteractiveAttention`. 'mhsa_interaction' has `interact_expand`, which must
            not be None there.
        masking: setting of 'masked': 'none', 'sch1', 'sch2', 'soft', or a list with an
            entry for each layer; see
            `mmattn.models.layers.masked.masking.resolve_masking`.
        alpha_init, kernel_size, mask_fill: settings of 'masked', see `MaskedAttention`.
        backend: backend of the operator of 'imhsa' or 'masked'; None takes the fastest.
            It must be None for the dense attentions.
        in_channels, drop_path_rate, with_cp, compile, init_cfg: see `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of any size, padded right and below to whole patches,
        and returns a tuple of maps (B, C, ceil(H / patch_size), ceil(W / patch_size)).

    Raises:
        ValueError: unknown arch, attention or block index, 'mhsa_interaction'
            without interaction, or dense attention with a backend.
    """

    arch_zoo = {
        'tiny': dict(embed_dims=192, depth=12, num_heads=3),
        'small': dict(embed_dims=384, depth=12, num_heads=6),
    }

    starts = {
        'tiny': 'timm://deit_tiny_patch16_224.fb_in1k',
        'small': 'timm://deit_small_patch16_224.fb_in1k',
    }

    def __init__(
        self,
        arch: str | Mapping = 'small',
        attention: str = 'imhsa',
        *,
        patch_size: int = 16,
        img_size: int | tuple[int, int] = 224,
        out_indices: int | tuple[int, ...] = -1,
        landmarks: int = 7,
        interact_expand: int | None = 2,
        local_kernel: int | None = 7,
        gate: bool = True,
        masking: str | Sequence[LayerEntry] = 'sch1',
        alpha_init: float = 0.5,
        kernel_size: int = 3,
        mask_fill: str = 'zero',
        backend: str | None = None,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims, depth = arch['embed_dims'], arch['depth']
        num_heads = arch['num_heads']
        levels = [embed_dims] * depth, [patch_size] * depth
        super().__init__(*levels, out_indices=out_indices, **frame)

        def mhsa(layer: int) -> nn.Module:
            return SelfAttention(embed_dims, num_heads)

        def mhsa_interaction(layer: int) -> nn.Module:
            return InteractiveSelfAttention(embed_dims, num_heads, interact_expand)

        def imhsa(layer: int) -> nn.Module:
            return InteractiveAttention(
                embed_dims,
                num_heads,
                landmarks=landmarks,
                interact_expand=interact_expand,
                local_kernel=local_kernel,
                gate=gate,
                backend=backend,
            )

        def masked(layer: int) -> nn.Module:
            heads, soft = resolve_masking(masking, depth, num_heads)[layer]
            return MaskedAttention(
                embed_dims,
                num_heads,
                heads,
                soft=soft,
                alpha_init=alpha_init,
                kernel_size=kernel_size,
                mask_fill=mask_fill,
                backend=backend,
            )

        attentions = dict(
            mhsa=mhsa, mhsa_interaction=mhsa_interaction, imhsa=imhsa, masked=masked
        )
        check_choice('ViT: attention', attention, attentions)
        if backend is not None and attention.startswith('mhsa'):
            raise UserError(
                f'ViT: attention={attention!r} has no backends, so `backend` must be '
                f'None, got {backend!r}'
            )
        self.stem = PatchStem(self.in_channels, embed_dims, patch_size, img_size)
        rates = drop_path_rates(self.drop_path_rate, depth)
        self.blocks = nn.ModuleList(
            Block(
                embed_dims,
                attentions[attention](i),
                PointwiseMlp(embed_dims, 4 * embed_dims),
                rates[i],
            )
            for i in range(self.out_indices[-1] + 1)
        )
        self.build_out_norms(eps=EPSILON)
        self.apply(init_linear_and_conv)
        self.freeze()

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights, self.out_indices[-1])


def convert_state_dict(
    state_dict: Mapping[str, Tensor], last: int | None = None
) -> dict[str, Tensor]:
    """Convert weights of DeiT to the names of `ViT`; other names stay.

    DeiT's special tokens stay as they are, without their positions.

    Args:
        state_dict: the weights, in timm's or the authors' names.
        last: the block whose output goes through DeiT's norm; None takes DeiT's last.
    """
    converted = mait.convert_state_dict(state_dict, last)
    special = len({'stem.cls_token', 'stem.dist_token'} & converted.keys())
    if special and POSITIONS in converted:
        converted[POSITIONS] = converted[POSITIONS][:, special:]
    return converted
