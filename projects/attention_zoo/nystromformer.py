"""Nystromformer: softmax attention by the Nystrom method."""

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import UserError

from .token_mixer import TokenMixer, check_positive, pool_heads


def pseudoinverse(matrix: Tensor, iterations: int) -> Tensor:
    """Approximate the Moore-Penrose inverse of stochastic matrices (..., L, L).

    An iteration of third order by Razavi et al., as in the paper. It starts from the
    transpose over the product of the 1-norm and the infinity norm.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    columns, rows = (matrix.sum(dim).amax(-1)[..., None, None] for dim in (-2, -1))
    inverse = matrix.mT / (columns * rows)
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * eye - product @ (7 * eye - product)
        inverse = inverse @ (13 * eye - product @ inner) / 4
    return inverse


@MODELS.register_module()
class NystromAttention(TokenMixer):
    """Attention through landmarks, with the pseudoinverse of their own map.

    From Xiong et al., "Nystromformer: A Nystrom-based Algorithm for Approximating
    Self-Attention", https://arxiv.org/abs/2102.03902, section 3. The paper takes means
    of segments of a text as landmarks. Here they are means over the cells of a grid on
    the map.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        landmarks: side of the grid of landmarks; L = landmarks^2 on a larger map.
        iterations: steps towards the pseudoinverse. None computes it by a singular
            value decomposition.
        conv_kernel: length of the convolution of the values along the tokens, one
            filter for each head, which is added to the output. None for no convolution.

    Raises:
        ValueError: heads do not divide C, a number is below 1, or the kernel is even.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        landmarks: int = 7,
        iterations: int | None = 6,
        conv_kernel: int | None = 35,
    ):
        super().__init__(embed_dims, num_heads)
        check_positive(landmarks=landmarks)
        if iterations is not None:
            check_positive(iterations=iterations)
        if conv_kernel is not None and conv_kernel % 2 == 0:
            raise UserError(f'conv_kernel must be odd or None, got {conv_kernel}')
        self.landmarks = landmarks
        self.iterations = iterations
        self.conv = None
        if conv_kernel is not None:
            self.conv = nn.Conv2d(
                num_heads,
                num_heads,
                (conv_kernel, 1),
                padding=(conv_kernel // 2, 0),
                groups=num_heads,
                bias=False,
            )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        grid = q.shape[2:4]
        q, k = self.split_scale(q, k)
        q_landmarks, k_landmarks = (pool_heads(t, self.landmarks) for t in (q, k))
        q, k, v = (tensor.flatten(2, 3) for tensor in (q, k, v))
        maps = (q_landmarks @ k_landmarks.mT).softmax(-1)  # (B, M, L, L)
        if self.iterations is None:
            inverse = torch.linalg.pinv(maps)
        else:
            inverse = pseudoinverse(maps, self.iterations)
        values = (q_landmarks @ k.mT).softmax(-1) @ v  # (B, M, L, D)
        # The product with the inverse first: L x L x D, and not N x L x L.
        out = (q @ k_landmarks.mT).softmax(-1) @ (inverse @ values)
        if self.conv is not None:
            out = out + self.conv(v)
        return out.unflatten(2, grid)
