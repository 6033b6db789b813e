"""Multi-head self-attention with masked heads, on tokens of a grid."""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops import masked_attention
from mmattn.ops.masked_attention import MASK_FILLS, resolve_heads

from ..checks import check_heads
from ..pointwise import PointwiseLinear


class MaskedAttention(nn.Module):
    """Projections, named as in timm's `Attention`, around `ops.masked_attention`.

    From "MaiT: Leverage Attention Masks for More Efficient Image Transformers",
    https://arxiv.org/abs/2207.03006, section 4. The paper does not state how the soft
    mask's alpha is parametrized and initialized; its section 5.3 leaves the initial
    value to further tuning. Here, alpha is the sigmoid of a parameter, at first a half.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        masked_heads: how many of the lowest heads are masked, or their indices.
        soft: whether each masked head learns an alpha (a soft mask).
        alpha_init: initial alpha, between 0 (a hard mask) and 1 (no mask). Hard masks
            ignore it.
        kernel_size: width R of the mask, odd.
        num_special: tokens before the grid's that see and are seen by all.
        mask_fill: 'zero', or 'neg_inf' for hard masks; see `ops.masked_attention`.
        backend: backend of the operator; None takes the fastest.

    Raises:
        ValueError: heads that do not divide C or do not exist, or a wrong setting.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        masked_heads: int | Sequence[int] = 1,
        *,
        soft: bool = False,
        alpha_init: float = 0.5,
        kernel_size: int = 3,
        num_special: int = 0,
        mask_fill: str = 'zero',
        backend: str | None = None,
    ):
        super().__init__()
        check_heads(embed_dims, num_heads)
        self.masked_heads = resolve_heads(masked_heads, num_heads)
        check_mask(kernel_size, mask_fill, soft)
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.num_special = num_special
        self.mask_fill = mask_fill
        self.backend = backend
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.proj = PointwiseLinear(embed_dims, embed_dims)
        logit = alpha_logit(self.masked_heads, soft, alpha_init)
        self.register_parameter('alpha_logit', logit)

    @property
    def alpha(self) -> Tensor | None:
        """Alpha of each soft-masked head, in (0, 1); None for a hard mask."""
        return None if self.alpha_logit is None else self.alpha_logit.sigmoid()

    def no_weight_decay(self) -> set[str]:
        return {'alpha_logit'}

    def biases(self, grid: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
        """Return `bias` and `global_bias` of the operator; both are None here."""
        return None, None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Sequence[int]) -> Tensor:
        """Return the heads' outputs; all shapes are (B, N, M, D).

        Subclasses with other masks override it, and analyses look inside.
        """
        bias, global_bias = self.biases(grid)
        return masked_attention(
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

    def forward(self, x: Tensor, grid: Sequence[int] | None = None) -> Tensor:
        """Attend within tokens, or a map; the shape stays.

        Args:
            x: tokens (B, N, C), where N = num_special + H * W for `grid` (H, W), or a
                map (B, H, W, C).
            grid: None for a map.
        """
        tokens = x if grid is not None else x.flatten(1, 2)
        grid = x.shape[1:3] if grid is None else grid
        qkv = self.qkv(tokens).unflatten(2, (3, self.num_heads, -1))
        q, k, v = qkv.unbind(2)  # (B, N, M, D)
        return self.proj(self.attend(q, k, v, grid).reshape(tokens.shape)).view(x.shape)

    def extra_repr(self) -> str:
        soft = self.alpha_logit is not None
        return (
            f'masked_heads={self.masked_heads}, kernel_size={self.kernel_size}, {soft=}'
        )


def check_mask(kernel_size: int, mask_fill: str, soft: bool):
    """Check settings as the operator does, but when a model is built."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise UserError(f'kernel_size must be odd, got {kernel_size}')
    if mask_fill not in MASK_FILLS[: 1 if soft else None]:
        raise UserError(
            f'mask_fill must be one of {MASK_FILLS}, or {MASK_FILLS[0]!r} for a soft '
            f'mask, got {mask_fill!r}'
        )


def alpha_logit(
    masked_heads: Sequence[int], soft: bool, alpha_init: float
) -> nn.Parameter | None:
    """Return the logit of each soft-masked head's alpha; None for hard masks.

    Raises:
        ValueError: `alpha_init` is not a number between 0 and 1.
    """
    if not isinstance(alpha_init, Real) or not 0 < alpha_init < 1:
        raise UserError(
            f'alpha_init must be a number between 0 and 1, both excluded, '
            f'got {alpha_init!r}'
        )
    if not (soft and masked_heads):
        return None
    logit = math.log(alpha_init / (1 - alpha_init))
    return nn.Parameter(torch.full((len(masked_heads),), logit))
