"""Interactive multi-head self-attention (iMHSA) on a channels-last grid."""

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops import landmark_attention
from mmattn.ops.common.adaptive_pool import adaptive_avg_pool

from .checks import check_heads
from .depthwise_conv import DepthwiseConv
from .pointwise import PointwiseLinear


def mixing_weights(
    num_heads: int, expand: int | None
) -> tuple[nn.Parameter, nn.Parameter]:
    """Return uninitialized w1 (E, M) and w2 (M, E), where E is `expand` times M.

    Raises:
        ValueError: `expand` is None or less than 1.
    """
    if expand is None or expand < 1:
        raise UserError(f'interact_expand must be at least 1, got {expand}')
    mixed = expand * num_heads
    return (
        nn.Parameter(torch.empty(mixed, num_heads)),
        nn.Parameter(torch.empty(num_heads, mixed)),
    )


@torch.no_grad()
def reset_mixing_weights(w1: Tensor, w2: Tensor, std: float = 0.02):
    """Set `w2 w1` to the identity plus noise.

    Without the noise the copies of a head would always get equal gradients.
    """
    copies = w1.shape[0] // w1.shape[1]
    eye = torch.eye(w1.shape[1]).repeat(copies, 1)
    w1.copy_(eye + std * torch.randn_like(eye))
    w2.copy_(eye.T / copies + std * torch.randn_like(eye.T))


class InteractiveAttention(nn.Module):
    """Projections, landmarks and local branch around `ops.landmark_attention`.

    From "Interactive Multi-Head Self-Attention with Linear Complexity",
    https://arxiv.org/abs/2402.17507, section 3.2. The paper states the decomposition
    through average-pooled landmarks and the interaction layers. The depthwise
    convolution of the values and the gate are inferred from its parameter and FLOP
    tables, which equation 7 alone does not reproduce.

    The text prints interaction layers of M x M. Here they are M x 2M and 2M x M. This
    expansion of 2 fits the tables best: 16 of 18 figures of the classifiers print the
    same as in the paper, and 10 with an expansion of 1. Other readings fit nearly as
    well. Equation 7 as printed is `interact_expand=1, local_kernel=None, gate=False`.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        landmarks: side of the landmark grid; a grid side shorter than this keeps its
            own length, so L = min(landmarks, H) * min(landmarks, W).
        interact_expand: width of the cross-head interaction as a multiple of M, 1 in
            the paper's text. None for no interaction.
        local_kernel: kernel of the depthwise convolution of the values that is added
            to the output, or None for no convolution.
        gate: whether the output's channels are gated by their mean over the tokens.
        backend: backend of the operator; None takes the fastest.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        *,
        landmarks: int = 7,
        interact_expand: int | None = 2,
        local_kernel: int | None = 7,
        gate: bool = True,
        backend: str | None = None,
    ):
        super().__init__()
        check_heads(embed_dims, num_heads)
        if landmarks < 1:
            raise UserError(f'landmarks must be at least 1, got {landmarks}')
        if local_kernel is not None and local_kernel % 2 == 0:
            raise UserError(f'local_kernel must be odd or None, got {local_kernel}')
        self.num_heads = num_heads
        self.landmarks = landmarks
        self.backend = backend
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        for side in 'qk':
            w1, w2 = None, None
            if interact_expand is not None:
                w1, w2 = mixing_weights(num_heads, interact_expand)
            self.register_parameter(f'w1_{side}', w1)
            self.register_parameter(f'w2_{side}', w2)
        self.local = None
        if local_kernel is not None:
            self.local = DepthwiseConv(embed_dims, local_kernel)
        self.gate = None
        if gate:
            self.gate = nn.Sequential(
                PointwiseLinear(embed_dims, embed_dims // 4),
                nn.ReLU(),
                PointwiseLinear(embed_dims // 4, embed_dims),
                nn.Sigmoid(),
            )
        self.proj = PointwiseLinear(embed_dims, embed_dims)
        self.reset_mixing()

    @torch.no_grad()
    def reset_mixing(self, std: float = 0.02):
        """Start near the plain decomposition; see `reset_mixing_weights`."""
        if self.w1_q is None:
            return
        for w1, w2 in ((self.w1_q, self.w2_q), (self.w1_k, self.w2_k)):
            reset_mixing_weights(w1, w2, std)

    def no_weight_decay(self) -> set[str]:
        return {'w1_q', 'w2_q', 'w1_k', 'w2_k'}

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, H, W, C) in and out."""
        B, H, W, C = x.shape
        qkv = self.qkv(x)  # (B, H, W, 3C)
        heads = 3, self.num_heads, C // self.num_heads
        q, k, v = qkv.view(B, H * W, *heads).unbind(2)  # (B, N, M, D)
        q_landmarks, k_landmarks = self._pool(qkv[..., : 2 * C])
        out = landmark_attention(
            q,
            k,
            v,
            q_landmarks,
            k_landmarks,
            self.w1_q,
            self.w2_q,
            self.w1_k,
            self.w2_k,
            backend=self.backend,
        ).reshape(B, H, W, C)
        if self.local is not None:
            out = out + self.local(qkv[..., 2 * C :])
        if self.gate is not None:
            out = out * self.gate(out.mean(dim=(1, 2), keepdim=True))
        return self.proj(out)

    def _pool(self, qk: Tensor) -> tuple[Tensor, Tensor]:
        """Average-pool (B, H, W, 2C) to two sets of landmarks (B, L, M, D)."""
        B, H, W, C = qk.shape
        size = (min(self.landmarks, H), min(self.landmarks, W))
        pooled = adaptive_avg_pool(qk, size)  # (B, h, w, 2C)
        heads = 2, self.num_heads, C // (2 * self.num_heads)
        pooled = pooled.reshape(B, size[0] * size[1], *heads)
        return pooled.to(qk.dtype).unbind(2)
