"""Performer: attention by positive orthogonal random features (FAVOR+)."""

import math

import torch
from mmengine.registry import MODELS
from torch import Tensor

from .token_mixer import TokenMixer, check_positive


def draw_features(num_heads: int, num_features: int, head_dims: int) -> Tensor:
    """Draw directions (M, F, D), each of them distributed as N(0, I).

    The D vectors of a block are orthogonal, which lowers the variance of the estimate.
    """
    blocks = -(-num_features // head_dims)
    normal = torch.randn(num_heads, blocks, head_dims, head_dims)
    orthogonal, triangle = torch.linalg.qr(normal)
    # The signs make the matrices uniform: the ones from QR are not.
    orthogonal = orthogonal * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    directions = orthogonal.flatten(1, 2)[:, :num_features]
    norms = torch.randn(num_heads, num_features, head_dims).norm(dim=-1, keepdim=True)
    return directions * norms


def log_features(x: Tensor, directions: Tensor) -> Tensor:
    """Return the logarithms of positive random features, lemma 1 of the paper.

    With features `phi_f(x) = exp(w_f^T x - |x|^2 / 2) / sqrt(F)`, the expectation of
    `phi(x)^T phi(y)` is `exp(x^T y)`.

    Args:
        x: queries or keys (..., N, D), scaled by D^(-1/4).
        directions: w, shape (..., F, D).

    Returns:
        Shape (..., N, F).
    """
    squares = x.square().sum(-1, keepdim=True)
    return x @ directions.mT - (squares + math.log(directions.shape[-2])) / 2


def kernel_attention(log_q: Tensor, log_k: Tensor, v: Tensor) -> Tensor:
    """Return linear attention from logarithms of features, without overflow.

    The quotient of `phi(q) (phi(k)^T v)` and `phi(q) (phi(k)^T 1)` is a mean over the
    features. Feature f has the value `softmax_n(log phi_f(k)) v` and the weight
    `phi_f(q)` times the sum of `phi_f(k)`.

    Args:
        log_q, log_k: shapes (..., N, F) and (..., N', F).
        v: shape (..., N', D).

    Returns:
        Shape (..., N, D).
    """
    values = log_k.softmax(-2).mT @ v  # (..., F, D)
    weights = log_q + log_k.logsumexp(-2, keepdim=True)
    return weights.softmax(-1) @ values


@MODELS.register_module()
class PerformerAttention(TokenMixer):
    """Attention that replaces the softmax kernel by random features.

    From Choromanski et al., "Rethinking Attention with Performers",
    https://arxiv.org/abs/2009.14794, section 2.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        num_features: random features F of a head.
        redraw: draw new features in each training step, as the paper advises. The
            features of evaluation are drawn once and stored with the weights.

    Raises:
        ValueError: heads do not divide C, or there are no features.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_features: int = 96,
        redraw: bool = True,
    ):
        super().__init__(embed_dims, num_heads)
        check_positive(num_features=num_features)
        self.redraw = redraw
        features = draw_features(num_heads, num_features, self.head_dims)
        self.register_buffer('directions', features)

    def current_directions(self) -> Tensor:
        """Return the directions (M, F, D) of this step."""
        if not (self.training and self.redraw):
            return self.directions
        num_heads, num_features, head_dims = self.directions.shape
        return draw_features(num_heads, num_features, head_dims).to(self.directions)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        grid = q.shape[2:4]
        q, k, v = (tensor.flatten(2, 3) for tensor in (q, k, v))
        directions = self.current_directions()
        log_q, log_k = (log_features(t, directions) for t in self.split_scale(q, k))
        return kernel_attention(log_q, log_k, v).unflatten(2, grid)
