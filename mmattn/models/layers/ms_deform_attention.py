"""Multi-scale deformable attention: each query samples a few points on several maps."""

from collections.abc import Sequence
from math import pi

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops import fused_ms_deform_attn
from mmattn.registry import MODELS

from .checks import check_heads


@MODELS.register_module()
class MSDeformAttention(nn.Module):
    """Projections around `ops.fused_ms_deform_attn`.

    The module of "Deformable DETR: Deformable Transformers for End-to-End Object
    Detection", https://arxiv.org/abs/2010.04159, equation 3 and appendix A, with the
    parameter names of the official code
    (https://github.com/fundamentalvision/Deformable-DETR, Apache-2.0). It adds neither
    positions nor a residual, and has no dropout. At first, each head has its points on
    a ray of its own, with equal weights.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C, and C times `value_proj_ratio`.
        num_levels: maps L.
        num_points: points P of each head on each map.
        value_proj_ratio: channels of the values as a multiple of C.
        backend: backend of the operator; None takes the fastest.

    Raises:
        ValueError: `num_heads` does not divide the channels, or a setting is below 1.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        *,
        value_proj_ratio: float = 1.0,
        backend: str | None = None,
    ):
        super().__init__()
        value_dims = int(embed_dims * value_proj_ratio)
        if min(embed_dims, num_heads, num_levels, num_points, value_dims) < 1:
            raise UserError(
                'channels, heads, levels and points must be at least 1, got '
                f'{embed_dims=}, {num_heads=}, {num_levels=}, {num_points=}, '
                f'{value_proj_ratio=}'
            )
        for dims in (embed_dims, value_dims):
            check_heads(dims, num_heads)
        self.num_heads = num_heads
        self.num_levels = num_levels
        self.num_points = num_points
        self.backend = backend
        points = num_heads * num_levels * num_points
        self.sampling_offsets = nn.Linear(embed_dims, 2 * points)
        self.attention_weights = nn.Linear(embed_dims, points)
        self.value_proj = nn.Linear(embed_dims, value_dims)
        self.output_proj = nn.Linear(value_dims, embed_dims)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        """Initialize as the official code: point p of a head is p pixels out."""
        M, L, P = self.num_heads, self.num_levels, self.num_points
        angle = torch.arange(M) * (2 * pi / M)
        rays = torch.stack([angle.cos(), angle.sin()], dim=-1)
        rays = rays / rays.abs().amax(-1, keepdim=True)  # on a square, not a circle
        steps = torch.arange(1, P + 1)[:, None]
        offsets = (rays[:, None, None] * steps).expand(M, L, P, 2)
        self.sampling_offsets.bias.copy_(offsets.flatten())
        nn.init.zeros_(self.sampling_offsets.weight)
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for linear in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(
        self,
        query: Tensor,
        value: Tensor,
        spatial_shapes: Sequence[Sequence[int]],
        reference_points: Tensor,
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return what each query samples from the maps.

        Args:
            query: shape (B, Q, C), with its position added.
            value: shape (B, S, C), pixels of all maps, level after level.
            spatial_shapes: height and width of each map.
            reference_points: points (B, Q, L, 2) or boxes (B, Q, L, 4), (x, y, w, h) in
                0..1 of each map. An L of 1 is for all maps. Locations are computed in
                float32 at least.
            padding_mask: shape (B, S), True where `value` is padding; None for none.

        Returns:
            Shape (B, Q, C).

        Raises:
            ValueError: shapes that disagree.
        """
        B, Q, _ = query.shape
        M, L, P = self.num_heads, self.num_levels, self.num_points
        if len(spatial_shapes) != L:
            raise UserError(f'spatial_shapes must have {L} maps, got {spatial_shapes}')
        value = self.value_proj(value)
        if padding_mask is not None:
            value = value.masked_fill(padding_mask[..., None], 0)
        out = fused_ms_deform_attn(
            value.unflatten(-1, (M, -1)),  # (B, S, M, D)
            spatial_shapes,
            reference_points,
            self.sampling_offsets(query).view(B, Q, M, L, P, 2),
            self.attention_weights(query).view(B, Q, M, L, P),
            backend=self.backend,
        )  # (B, Q, C)
        return self.output_proj(out)

    def extra_repr(self) -> str:
        return (
            f'num_heads={self.num_heads}, num_levels={self.num_levels}, '
            f'num_points={self.num_points}'
        )
