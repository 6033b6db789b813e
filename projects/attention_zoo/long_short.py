"""Long-Short: a sliding window, and a dynamic projection of all tokens."""

from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import PointwiseLinear

from .token_mixer import TokenMixer, Windows, attend, check_positive, shared_scores


@MODELS.register_module()
class LongShortAttention(TokenMixer):
    """Attention to nearby tokens, and to projections of all tokens, in one softmax.

    From Zhu et al., "Long-Short Transformer: Efficient Transformers for Language and
    Vision", https://arxiv.org/abs/2107.02192, section 3. The queries of a window
    see their window, and half its side more in each direction. The projection
    `softmax_n(x W)` of N tokens to `rank` depends on the tokens. DualLN normalizes keys
    and values before the softmax, of either kind by a norm of its own.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        window: side of the windows of queries.
        rank: projected tokens of a head; 0 for the window alone.
        dual_norm: whether DualLN is applied, to all heads of a token together.

    Raises:
        ValueError: heads do not divide C, an empty window, or a negative rank.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window: int = 4,
        rank: int = 49,
        dual_norm: bool = True,
    ):
        super().__init__(embed_dims, num_heads)
        check_positive(window=window)
        if rank < 0:
            raise UserError(f'rank must be at least 0, got {rank}')
        self.window = window
        self.to_projection = None
        if rank:
            self.to_projection = PointwiseLinear(embed_dims, num_heads * rank)
        self.norm_short, self.norm_long = (
            nn.LayerNorm(embed_dims) if dual_norm else nn.Identity() for _ in range(2)
        )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        windows = Windows(q.shape[2:4], (self.window,) * 2, halo=self.window // 2)
        q = windows.split(q * self.head_dims**-0.5)
        k_short, v_short = (windows.keys(normalize(t, self.norm_short)) for t in (k, v))
        sets = [(windows.scores(q, k_short), v_short)]
        if self.to_projection is not None:
            k_long, v_long = self.project(k, v, x)
            sets.append((shared_scores(q, k_long), v_long))
        return windows.merge(attend(sets))

    def project(self, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return projected keys and values, both (B, M, R, D), after their norm."""
        weights = self.to_projection(x).flatten(1, 2).unflatten(2, (self.num_heads, -1))
        weights = weights.softmax(1).permute(0, 2, 3, 1)  # (B, M, R, N)
        k, v = (
            normalize((weights @ t.flatten(2, 3)).unsqueeze(2), self.norm_long)
            for t in (k, v)
        )
        return k.squeeze(2), v.squeeze(2)


def normalize(x: Tensor, norm: nn.Module) -> Tensor:
    """Normalize the channels of all heads of (B, M, H, W, D) together."""
    tokens = x.permute(0, 2, 3, 1, 4)
    return norm(tokens.flatten(3)).view_as(tokens).permute(0, 3, 1, 2, 4)
