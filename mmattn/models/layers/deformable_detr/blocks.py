"""Layers of the encoder and decoder of Deformable DETR.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, section 4.1. Norms come after what they normalize.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..ms_deform_attention import MSDeformAttention


class DeformableDETRLayer(nn.Module):
    """Deformable attention, what a subclass adds, and a feed-forward network.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        num_levels: maps L.
        num_points: points P of each head on each map.
        feedforward_channels: width of the feed-forward network.
        dropout: rate after attention and inside and after the feed-forward network.
    """

    last_norm: str  # name of the norm after the feed-forward network

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
        attention = MSDeformAttention(embed_dims, num_heads, num_levels, num_points)
        self.add_attention(attention, embed_dims, num_heads, dropout)
        self.linear1 = nn.Linear(embed_dims, feedforward_channels)
        self.linear2 = nn.Linear(feedforward_channels, embed_dims)
        self.add_module(self.last_norm, nn.LayerNorm(embed_dims))
        self.dropout = nn.Dropout(dropout)

    def add_attention(
        self,
        attention: MSDeformAttention,
        embed_dims: int,
        num_heads: int,
        dropout: float,
    ):
        """Register the deformable attention, other attention, and their norms."""
        raise NotImplementedError

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, N, C) after the feed-forward network and its norm."""
        h = self.dropout(self.linear1(x).relu())
        return getattr(self, self.last_norm)(x + self.dropout(self.linear2(h)))


class DeformableDETREncoderLayer(DeformableDETRLayer):
    """Self-attention and feed-forward network, each with a norm after it."""

    last_norm = 'norm2'

    def add_attention(self, attention, embed_dims, num_heads, dropout):
        self.self_attn = attention
        self.norm1 = nn.LayerNorm(embed_dims)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        reference: Tensor,
        shapes: Sequence[Sequence[int]],
        padding_mask: Tensor | None,
    ) -> Tensor:
        """Return encoded tokens (B, S, C)."""
        attended = self.self_attn(x + positions, x, shapes, reference, padding_mask)
        return self.feed_forward(self.norm1(x + self.dropout(attended)))


class DeformableDETRDecoderLayer(DeformableDETRLayer):
    """Self-attention, deformable cross-attention, feed-forward; a norm after each.

    In the official names norm2 follows the self-attention and norm1 the
    cross-attention.
    """

    last_norm = 'norm3'

    def add_attention(self, attention, embed_dims, num_heads, dropout):
        self.cross_attn = attention
        self.norm1 = nn.LayerNorm(embed_dims)
        self.self_attn = nn.MultiheadAttention(
            embed_dims, num_heads, dropout=dropout, batch_first=True
        )
        self.norm2 = nn.LayerNorm(embed_dims)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        memory: Tensor,
        reference: Tensor,
        shapes: Sequence[Sequence[int]],
        padding_mask: Tensor | None,
    ) -> Tensor:
        """Return decoded queries (B, Q, C)."""
        q = x + positions
        attended, _ = self.self_attn(q, q, x, need_weights=False)
        x = self.norm2(x + self.dropout(attended))
        attended = self.cross_attn(
            x + positions, memory, shapes, reference, padding_mask
        )
        return self.feed_forward(self.norm1(x + self.dropout(attended)))


def run_layer(layer: nn.Module, with_cp: bool, *args) -> Tensor:
    """Return `layer(*args)`; the backward recomputes activations if `with_cp`."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(layer, *args, use_reentrant=False)
    return layer(*args)
