"""Encoder of Deformable DETR: self-attention of the pixels of several maps.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, section 4.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.registry import MODELS

from ..initialization import Initializable, init_transformer
from .blocks import DeformableDETREncoderLayer, run_layer
from .geometry import (
    POSITION_OFFSET,
    check_maps,
    flatten_maps,
    flatten_masks,
    geometry_dtype,
    map_shapes,
    on_levels,
    pixel_centers,
    sine_positions,
    split_maps,
    valid_ratios,
)


@MODELS.register_module()
class DeformableDETREncoder(Initializable):
    """Encoder layers on several maps, whose shapes stay the same.

    It has the parameters of the official code
    (https://github.com/fundamentalvision/Deformable-DETR, Apache-2.0). The encoder also
    owns the level embedding and computes sine positions, valid ratios and reference
    points.

    Args:
        embed_dims: channels C, divisible by 4.
        num_layers: number of layers.
        num_heads, num_levels, num_points, feedforward_channels, dropout: see
            `DeformableDETRLayer`.
        position_offset: added to the pixels' indices, which begin with 1, in the sine
            positions; 0 in Mask2Former.
        with_cp: recompute each layer's activations in the backward.
        init_cfg: mmengine initialization.

    Raises:
        ValueError: `embed_dims` is not divisible, or a setting is below 1.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_layers: int = 6,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        feedforward_channels: int = 1024,
        dropout: float = 0.1,
        *,
        position_offset: float = POSITION_OFFSET,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__()
        if embed_dims % 4:
            raise UserError(
                f'embed_dims must be divisible by 4 for positions, got {embed_dims=}'
            )
        if num_layers < 1:
            raise UserError(f'num_layers must be at least 1, got {num_layers=}')
        self.embed_dims = embed_dims
        self.num_levels = num_levels
        self.position_offset = position_offset
        self.with_cp = with_cp
        self.init_cfg = init_cfg
        self.level_embed = nn.Parameter(torch.empty(num_levels, embed_dims))
        sizes = embed_dims, num_heads, num_levels, num_points, feedforward_channels
        self.layers = nn.ModuleList(
            DeformableDETREncoderLayer(*sizes, dropout) for _ in range(num_layers)
        )
        init_transformer(self.layers)
        nn.init.normal_(self.level_embed)

    def forward(
        self, feats: Sequence[Tensor], masks: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Encode maps.

        Args:
            feats: L maps of shape (B, C, H, W), from the finest on.
            masks: shape (B, H, W) for each map, True at padding, which is on the right
                and at the bottom; None where there is no padding.

        Returns:
            L maps of the same shapes.

        Raises:
            ValueError: wrong number of maps or channels, or masks of other shapes.
        """
        check_maps(feats, masks, self.num_levels, self.embed_dims)
        shapes = map_shapes(feats)
        tokens = self.encode(
            flatten_maps(feats),
            self.positions(shapes, masks),
            self.reference_points(shapes, masks),
            shapes,
            flatten_masks(masks),
        )
        return split_maps(tokens, shapes)

    def encode(
        self,
        tokens: Tensor,
        positions: Tensor,
        reference: Tensor,
        shapes: Sequence[tuple[int, int]],
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the layers alone.

        Args:
            tokens: shape (B, S, C), pixels of all maps, level after level.
            positions: shape (B, S, C) or (1, S, C), level embedding included.
            reference: shape (B, S, L, 2) or (B, S, 1, 2), where B may be 1.
            shapes: height and width of each map.
            padding_mask: shape (B, S), True at padding; None for none.

        Returns:
            Shape (B, S, C).
        """
        reference = reference.expand(len(tokens), -1, -1, -1)
        for layer in self.layers:
            arguments = tokens, positions, reference, shapes, padding_mask
            tokens = run_layer(layer, self.with_cp, *arguments)
        return tokens

    def positions(
        self, shapes: Sequence[tuple[int, int]], masks: Sequence[Tensor] | None
    ) -> Tensor:
        """Return sine positions plus level embedding, (B, S, C).

        B is 1 without masks. They are computed in float32 at least and returned in the
        parameters' dtype.
        """
        embed = self.level_embed
        levels = [
            sine_positions(
                shape,
                None if masks is None else masks[level],
                self.embed_dims,
                offset=self.position_offset,
                dtype=geometry_dtype(embed),
                device=embed.device,
            ).to(embed.dtype)
            + embed[level]
            for level, shape in enumerate(shapes)
        ]
        return torch.cat(levels, dim=1)

    def reference_points(
        self, shapes: Sequence[tuple[int, int]], masks: Sequence[Tensor] | None
    ) -> Tensor:
        """Return each pixel's own center on each map, shape (B, S, L, 2).

        Without masks it is the same for all images and maps, and the shape is
        (1, S, 1, 2).
        """
        dtype = geometry_dtype(self.level_embed)
        ratios = valid_ratios(masks, dtype)
        centers = pixel_centers(
            shapes, ratios, dtype=dtype, device=self.level_embed.device
        )
        return on_levels(centers, ratios)
