"""Multi-head self-attention with masked heads, on tokens of a grid."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmattn.ops import masked_attention

from .pointwise import PointwiseLinear


class MaskedAttention(nn.Module):
    """Projections around `ops.masked_attention`; parameters are timm's `Attention`'s.

    From "MaiT: Leverage Attention Masks for More Efficient Image Transformers",
    https://arxiv.org/abs/2207.03006, section 4. How the paper parametrises and starts
    the soft mask's alpha is not stated: here it is the sigmoid of a parameter that
    starts at 0.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        masked_heads: how many of the lowest heads are masked, or their indices.
        soft: whether the masked heads learn an alpha each (a soft mask).
        kernel_size: width R of the mask, odd.
        num_special: tokens before the grid's that see and are seen by all.
        mask_fill: 'zero', or 'neg_inf'; see `ops.masked_attention`.
        backend: backend of the operator; None takes the fastest.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        masked_heads: int | Sequence[int] = 1,
        *,
        soft: bool = False,
        kernel_size: int = 3,
        num_special: int = 0,
        mask_fill: str = 'zero',
        backend: str | None = None,
    ):
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(
                f'{embed_dims} channels do not split into {num_heads} heads'
            )
        if isinstance(masked_heads, int):
            masked_heads = range(masked_heads)
        self.masked_heads = tuple(masked_heads)
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.num_special = num_special
        self.mask_fill = mask_fill
        self.backend = backend
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.proj = PointwiseLinear(embed_dims, embed_dims)
        logit = nn.Parameter(torch.zeros(len(self.masked_heads))) if soft else None
        self.register_parameter('alpha_logit', logit)

    @property
    def alpha(self) -> Tensor | None:
        """Of each masked head, in (0, 1); None for a hard mask."""
        return None if self.alpha_logit is None else self.alpha_logit.sigmoid()

    def biases(self, grid: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
        """`bias` and `global_bias` of the operator; none here."""
        return None, None

    def forward(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """Shape (B, N, C) in and out, N = num_special + H * W for `grid` (H, W)."""
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, -1).unbind(2)
        bias, global_bias = self.biases(grid)
        out = masked_attention(
            q,
            k,
            v,
            grid,
            kernel_size=self.kernel_size,
            num_special=self.num_special,
            masked_heads=self.masked_heads,
            bias=bias,
            global_bias=global_bias,
            alpha=self.alpha,
            mask_fill=self.mask_fill,
            backend=self.backend,
        )
        return self.proj(out.reshape(B, N, C))
