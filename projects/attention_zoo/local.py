"""Local attention: softmax attention inside windows of the map."""

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.models.layers.offset_tables import spread_table

from .token_mixer import TokenMixer, Windows, attend, check_positive


@MODELS.register_module()
class LocalAttention(TokenMixer):
    """Attention inside windows that do not overlap, with relative positions.

    The pattern comes from Child et al., "Generating Long Sequences with Sparse
    Transformers", https://arxiv.org/abs/1904.10509, on a map: a token sees the tokens
    of its window. The bias of relative positions is as in EVA's comparison of methods.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        window: side of a window.

    Raises:
        ValueError: heads do not divide C, or the window is empty.
    """

    def __init__(self, embed_dims: int, num_heads: int, window: int = 7):
        super().__init__(embed_dims, num_heads)
        check_positive(window=window)
        self.window = window
        side = 2 * window - 1
        self.bias_table = nn.Parameter(torch.empty(num_heads, side, side))
        nn.init.trunc_normal_(self.bias_table, std=0.02)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        windows = Windows(q.shape[2:4], (self.window, self.window))
        q, k = self.split_scale(q, k)
        q, k, v = map(windows.split, (q, k, v))
        return windows.merge(attend([(self.window_scores(windows, q, k), v)]))

    def window_scores(self, windows: Windows, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores with the bias of relative positions, (B, M, G, K, K)."""
        return windows.scores(q, k, spread_table(self.bias_table, windows.window))
