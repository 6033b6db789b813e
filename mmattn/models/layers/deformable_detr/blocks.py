"""Layers of the encoder and decoder of Deformable DETR.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, section 4.1. Norms come after what they normalize.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..ms_deform_attention import MSDeformAttention


class DeformableDETREncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each with a norm after it."""

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_levels: int,
        num_points: int,
        feedforward_channels: int,
        dropout: float,
    ):
        super().__init__()
        self.self_attn = MSDeformAttention(
            embed_dims, num_heads, num_levels, num_points
        )
        self.norm1 = nn.LayerNorm(embed_dims)
        self.linear1 = nn.Linear(embed_dims, feedforward_channels)
        self.linear2 = nn.Linear(feedforward_channels, embed_dims)
        self.norm2 = nn.LayerNorm(embed_dims)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        reference: Tensor,
        shapes: Sequence[Sequence[int]],
        padding_mask: Tensor | None,
    ) -> Tensor:
        """Tokens (B, S, C) in and out."""
        attended = self.self_attn(x + positions, x, shapes, reference, padding_mask)
        x = self.norm1(x + self.dropout(attended))
        h = self.dropout(self.linear1(x).relu())
        return self.norm2(x + self.dropout(self.linear2(h)))


class DeformableDETRDecoderLayer(nn.Module):
    """Self-attention, deformable cross-attention, feed-forward; a norm after each.

    In the official names norm2 follows the self-attention and norm1 the
    cross-attention.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_levels: int,
        num_points: int,
        feedforward_channels: int,
        dropout: float,
    ):
        super().__init__()
        self.cross_attn = MSDeformAttention(
            embed_dims, num_heads, num_levels, num_points
        )
        self.norm1 = nn.LayerNorm(embed_dims)
        self.self_attn = nn.MultiheadAttention(
            embed_dims, num_heads, dropout=dropout, batch_first=True
        )
        self.norm2 = nn.LayerNorm(embed_dims)
        self.linear1 = nn.Linear(embed_dims, feedforward_channels)
        self.linear2 = nn.Linear(feedforward_channels, embed_dims)
        self.norm3 = nn.LayerNorm(embed_dims)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        memory: Tensor,
        reference: Tensor,
        shapes: Sequence[Sequence[int]],
        padding_mask: Tensor | None,
    ) -> Tensor:
        """Queries (B, Q, C) in and out."""
        q = x + positions
        attended, _ = self.self_attn(q, q, x, need_weights=False)
        x = self.norm2(x + self.dropout(attended))
        attended = self.cross_attn(
            x + positions, memory, shapes, reference, padding_mask
        )
        x = self.norm1(x + self.dropout(attended))
        h = self.dropout(self.linear1(x).relu())
        return self.norm3(x + self.dropout(self.linear2(h)))


def run_layer(layer: nn.Module, with_cp: bool, *args) -> Tensor:
    """`layer(*args)`, recomputing activations in the backward when `with_cp`."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(layer, *args, use_reentrant=False)
    return layer(*args)
