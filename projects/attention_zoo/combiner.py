"""Combiner: full attention by a factorization into regions."""

import torch
from mmengine.registry import MODELS
from torch import Tensor

from mmattn.errors import check_choice

from .token_mixer import (
    TokenMixer,
    Windows,
    attend_near_and_far,
    check_positive,
    shared_scores,
)

SUMMARIES = ('mean', 'max')


@MODELS.register_module()
class CombinerAttention(TokenMixer):
    """Attention to the tokens of the own region, and to expectations over the others.

    From Ren et al., "Combiner: Full Attention Transformer with Sparse Computation
    Cost", https://arxiv.org/abs/2107.05768, section 3, with the regions of
    Combiner-Fixed for both directions. Inside another region r, the distribution of a
    query is replaced by one that all queries share, `softmax(q_r k^T / sqrt(D))`. The
    region as a whole has the score `q k_r^T / sqrt(D)`. The regions are windows of the
    map, where the paper's are segments of a sequence.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        window: side of a region.
        summary: how q_r and k_r are made of the queries and keys of a region: 'mean' or
            'max'.

    Raises:
        ValueError: heads do not divide C, the window is empty, or an unknown summary.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window: int = 7,
        summary: str = 'mean',
    ):
        super().__init__(embed_dims, num_heads)
        check_positive(window=window)
        check_choice('summary', summary, SUMMARIES)
        self.window = window
        self.summary = summary

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k = self.split_scale(q, k)
        return attend_near_and_far(q, k, v, self.window, self.elsewhere)

    def elsewhere(
        self, windows: Windows, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (B, M, G, K, G) and expectations (B, M, G, D) of the regions.

        The score of the own region is -inf.
        """
        beyond = windows.beyond(q).mT  # (G, K, 1)
        q_regions, k_regions = (self.summarize(t, beyond) for t in (q, k))
        within = windows.scores(q_regions.unsqueeze(3), k).softmax(-1)
        expectations = (within @ v).squeeze(3)
        own = torch.eye(q.shape[2], dtype=torch.bool, device=q.device)[:, None]
        scores = shared_scores(q, k_regions).masked_fill(own, -torch.inf)
        return scores, expectations

    def summarize(self, x: Tensor, beyond: Tensor) -> Tensor:
        """Return a vector of each region, (B, M, G, D)."""
        if self.summary == 'max':
            return x.masked_fill(beyond, -torch.inf).amax(3)
        return x.masked_fill(beyond, 0).sum(3) / (~beyond).sum(1)
