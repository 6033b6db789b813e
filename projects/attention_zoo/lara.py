"""LARA: linear randomized attention."""

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from .performer import kernel_attention, log_features
from .token_mixer import TokenMixer, check_positive, pool_heads


def randomized_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    means: Tensor,
    samples: Tensor,
    query_weights: Tensor | None = None,
) -> Tensor:
    """Estimate softmax attention from one sample of each of L proposals.

    Softmax attention is the mean of `f(w) = sum_m xi(k_m, w) v_m / sum_m xi(k_m, w)`
    under a density proportional to `N(w; 0, I) xi(q, w) sum_m xi(k_m, w)`, with
    `xi(x, w) = exp(w^T x - |x|^2 / 2)`. The samples are weighted by multiple importance
    sampling and normalized by their sum. Since `N(w; mean, I) / N(w; 0, I)` is
    `xi(mean, w)`, no density is evaluated.

    Args:
        q, k: shape (..., N, D), scaled by D^(-1/4).
        v: shape (..., N, D).
        means: means of the normal proposals, (..., L, D).
        samples: a sample of each proposal, (..., L, D).
        query_weights: what is added to the balance heuristic, (..., N, L). None
            for the balance heuristic alone.

    Returns:
        Shape (..., N, D).
    """
    log_q, log_k = (log_features(x, samples) for x in (q, k))
    densities = log_features(means, samples)  # (..., proposal, sample)
    log_weights = -densities.logsumexp(-2, keepdim=True)  # (..., 1, L)
    if query_weights is not None:
        own = densities.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        balance = (own + log_weights).exp()
        tiny = torch.finfo(q.dtype).tiny
        log_weights = (balance + query_weights).clamp(min=tiny).log() - own
    return kernel_attention(log_q + log_weights, log_k, v)


@MODELS.register_module()
class LARAAttention(TokenMixer):
    """Attention as an expectation, estimated from one sample for each landmark.

    From Zheng, Wang and Kong, "Linear Complexity Randomized Self-attention Mechanism",
    https://arxiv.org/abs/2204.04667. The means of the proposals are sums of pooled
    queries and keys. In evaluation mode the samples are the means, as in the authors'
    code.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        landmarks: side of the grid of landmarks; L = landmarks^2 on a larger map.
        query_coefficient: factor of the weights that depend on the query, 2 in the
            authors' commands. 0 is the balance heuristic.
        mix_keys: whether pooled keys attend to each other.

    Raises:
        ValueError: heads do not divide C, or there are no landmarks.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        landmarks: int = 7,
        query_coefficient: float = 2.0,
        mix_keys: bool = True,
    ):
        super().__init__(embed_dims, num_heads)
        check_positive(landmarks=landmarks)
        self.landmarks = landmarks
        self.query_coefficient = query_coefficient
        self.mix_keys = mix_keys
        self.to_q_landmarks, self.to_k_landmarks = (
            nn.Sequential(
                nn.Linear(self.head_dims, self.head_dims), nn.LayerNorm(self.head_dims)
            )
            for _ in range(2)
        )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        grid = q.shape[2:4]
        q_landmarks = self.to_q_landmarks(pool_heads(q, self.landmarks))
        k_landmarks = self.to_k_landmarks(pool_heads(k, self.landmarks))
        q, k, v = (tensor.flatten(2, 3) for tensor in (q, k, v))
        q, k, q_landmarks, k_landmarks = self.split_scale(
            q, k, q_landmarks, k_landmarks
        )
        if self.mix_keys:
            k_landmarks = (k_landmarks @ k_landmarks.mT).softmax(-1) @ k_landmarks
        means = samples = q_landmarks + k_landmarks
        if self.training:
            samples = means + torch.randn_like(means)
        query_weights = None
        if self.query_coefficient:
            shares = (q @ q_landmarks.mT).softmax(-2)  # of a landmark, over the queries
            centered = shares - shares.mean(-1, keepdim=True)
            query_weights = self.query_coefficient * centered
        out = randomized_attention(q, k, v, means, samples, query_weights)
        return out.unflatten(2, grid)
