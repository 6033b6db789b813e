"""Attention under random masks as sparse as neighborhoods, a control."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmattn.errors import UserError
from mmattn.ops import neighborhood_mask
from mmattn.ops.common.precision import is_autocast_on
from mmattn.ops.masked_attention import attention_under_mask

from .attention import MaskedAttention


class RandomMaskedAttention(MaskedAttention):
    """`MaskedAttention` whose masks are `random_mask`; dense, quadratic in N.

    It is the control of "MaiT: Leverage Attention Masks for More Efficient Image
    Transformers", https://arxiv.org/abs/2207.03006, section 5.6, which separates the
    gain of locality from pruning's: "a random mask of the same dropout rate to
    one head of all 24 layers" costs 0.5 points of top-1. We read this as one mask for
    the whole model, since the neighborhoods are the same in each layer, too.

    Args:
        embed_dims, num_heads, masked_heads, settings: see `MaskedAttention`. `soft` and
            backends other than 'reference' are not supported for random masks.
        seed: seed of the mask. Each call draws the mask again, for any grid; it is not
            in the state dict.

    Raises:
        ValueError: see `MaskedAttention`; or a soft mask or another backend is given.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        masked_heads: int | Sequence[int] = 1,
        *,
        seed: int = 0,
        **settings,
    ):
        super().__init__(embed_dims, num_heads, masked_heads, **settings)
        if self.alpha_logit is not None or self.backend not in (None, 'reference'):
            raise UserError(
                "random masks support soft=False and backend='reference' or None, got "
                f'soft={self.alpha_logit is not None}, backend={self.backend!r}'
            )
        self.seed = seed
        is_global = [head not in self.masked_heads for head in range(num_heads)]
        self.register_buffer('is_global', torch.tensor(is_global), persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Sequence[int]) -> Tensor:
        if is_autocast_on(q.device.type):
            with torch.autocast(q.device.type, enabled=False):
                return self.attend(q, k, v, grid)
        mask = random_mask(
            grid, self.kernel_size, self.num_special, self.seed, device=q.device
        )
        mask = mask | self.is_global[:, None, None]
        return attention_under_mask(q, k, v, mask, mask_fill=self.mask_fill)

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, seed={self.seed}'


def random_mask(
    grid: Sequence[int],
    kernel_size: int = 3,
    num_special: int = 0,
    seed: int = 0,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return a boolean mask (N, N) as sparse as `neighborhood_mask`.

    Each patch sees as many patches as it has neighbors, itself included. They are drawn
    from all patches with equal probability. Special tokens see and are seen by all. A
    seed gives the same mask of a grid on every device and in every version of PyTorch,
    whatever the state of the random number generators.
    """
    mask = neighborhood_mask(grid, kernel_size, num_special, device=device)
    patches = mask[num_special:, num_special:]
    N = len(patches)
    start = _scramble(
        torch.tensor(seed, device=device) + 1 & 0xFFFFFFFF
    )  # 0 would stay 0
    keys = _scramble(start ^ torch.arange(N * N, device=device)).view(N, N)
    last = patches.sum(-1, keepdim=True) - 1
    mask[num_special:, num_special:] = keys <= keys.sort(-1).values.gather(-1, last)
    return mask


def _scramble(x: Tensor) -> Tensor:
    """Permute the 32-bit numbers, held in int64, so that no order is visible.

    Only 0 stays 0.
    """
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B & 0xFFFFFFFF  # an odd factor can be inverted
    return x ^ (x >> 16)
