"""Scatterbrain: exact attention on a sparse support, random features elsewhere."""

from itertools import accumulate

import torch
from mmengine.registry import MODELS
from torch import Tensor

from .performer import PerformerAttention, log_features
from .token_mixer import Windows, attend_near_and_far, check_positive


def sums_of_others(x: Tensor) -> Tensor:
    """Return the sum over the other windows, for each window of (B, M, G, ...).

    Sums from both sides cancel nothing. The total minus the own part would lose a small
    remainder beside a large part.
    """
    windows = x.unbind(2)
    zero = torch.zeros_like(windows[0])
    # On a CPU `cumsum` takes ten times as long.
    before = [zero, *accumulate(windows[:-1])]
    after = [zero, *accumulate(windows[:0:-1])][::-1]
    return torch.stack([a + b for a, b in zip(before, after, strict=True)], 2)


@MODELS.register_module()
class ScatterbrainAttention(PerformerAttention):
    """Performer whose map is exact on a sparse support.

    From Chen et al., "Scatterbrain: Unifying Sparse and Low-rank Attention
    Approximation", https://arxiv.org/abs/2110.15343. Before the normalization the map
    is `exp(q k^T / sqrt(D))` on the support, and `phi(q) phi(k)^T` elsewhere. The paper
    finds the support by hashing. Here it is the own window, as in EVA's comparison of
    methods.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        num_features: random features F of a head.
        window: side of a window.
        redraw: draw new features in each training step, see `PerformerAttention`.

    Raises:
        ValueError: heads do not divide C, or a number is below 1.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_features: int = 96,
        window: int = 7,
        redraw: bool = True,
    ):
        super().__init__(embed_dims, num_heads, num_features, redraw)
        check_positive(window=window)
        self.window = window

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k = self.split_scale(q, k)
        return attend_near_and_far(q, k, v, self.window, self.elsewhere)

    def elsewhere(
        self, windows: Windows, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (B, M, G, K, F) and values (B, M, G, F, D) of the features.

        A feature of a window has the mean value of the tokens of the other windows.
        """
        directions = self.current_directions()
        log_q, log_k = (
            log_features(t.flatten(2, 3), directions).unflatten(2, t.shape[2:4])
            for t in (q, k)
        )  # (B, M, G, K, F)
        log_k = log_k.masked_fill(windows.beyond(q).mT, -torch.inf)
        largest = log_k.amax((2, 3), keepdim=True).detach()  # (B, M, 1, 1, F)
        features = (log_k - largest).exp()
        sums = sums_of_others(features.sum(3))  # (B, M, G, F)
        values = sums_of_others(features.mT @ v)  # (B, M, G, F, D)
        # A feature that vanishes on all other windows has no value and no weight. The
        # gradient divides by the square of a sum.
        empty = sums < torch.finfo(sums.dtype).tiny ** 0.5
        sums = sums.masked_fill(empty, 1)
        log_sums = sums.log().masked_fill(empty, -torch.inf)
        return log_q + largest + log_sums.unsqueeze(3), values / sums.unsqueeze(-1)
