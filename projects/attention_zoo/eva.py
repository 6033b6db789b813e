"""EVA: exact attention nearby, and control variates for the rest."""

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from .local import LocalAttention
from .performer import log_features
from .token_mixer import Windows, attend, check_positive, shared_scores


@MODELS.register_module()
class EVAAttention(LocalAttention):
    """Attention to the tokens of the own window, and to one value for each group.

    From Zheng et al., "Efficient Attention via Control Variates",
    https://arxiv.org/abs/2302.04542, section 4. All tokens of a group share the
    coefficient of their control variates. The key of a group stands for its tokens in
    the softmax, and its value is their mean under random features with one sample. As
    in the authors' code, groups cover the whole map, the own window included. In
    evaluation mode the sample is its mean.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        window: side of a window.
        landmarks: groups along a side of the map. A group has ceil(side / landmarks)
            pixels there, so fewer groups may cover the side.
        project: whether the keys and queries of groups are projected and normalized.
            Without, they are means.

    Raises:
        ValueError: heads do not divide C, or a number is below 1.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window: int = 7,
        landmarks: int = 7,
        project: bool = True,
    ):
        super().__init__(embed_dims, num_heads, window)
        check_positive(landmarks=landmarks)
        self.landmarks = landmarks
        self.to_q_group, self.to_k_group = (
            nn.Sequential(
                nn.Linear(self.head_dims, self.head_dims), nn.LayerNorm(self.head_dims)
            )
            if project
            else nn.Identity()
            for _ in range(2)
        )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        windows = Windows(q.shape[2:4], (self.window, self.window))
        k_groups, v_groups = self.summarize(q, k, v)
        q, k = self.split_scale(q, k)
        q, k, v = map(windows.split, (q, k, v))
        nearby = self.window_scores(windows, q, k), v
        return windows.merge(attend([nearby, (shared_scores(q, k_groups), v_groups)]))

    def summarize(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled keys and values of the groups, both (B, M, L, D)."""
        grid = q.shape[2:4]
        groups = Windows(grid, [-(-side // self.landmarks) for side in grid])
        q, k, v = map(groups.split, (q, k, v))  # (B, M, L, K, D)
        beyond = groups.beyond(q).mT  # (L, K, 1)
        inside = (~beyond).to(q.dtype)
        sizes = inside.sum(-2)
        q_groups = self.to_q_group((q * inside).sum(-2) / sizes)
        k_groups = self.to_k_group((k * inside).sum(-2) / sizes)
        q_groups, k_groups, k = self.split_scale(q_groups, k_groups, k)
        samples = (q_groups + k_groups) / 2
        if self.training:
            samples = samples + torch.randn_like(samples)
        log_k = log_features(k, samples.unsqueeze(-2))  # (B, M, L, K, 1)
        weights = log_k.masked_fill(beyond, -torch.inf).softmax(-2)
        return k_groups, (weights * v).sum(-2)
