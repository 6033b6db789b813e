"""Decoder of Deformable DETR: queries that attend to the encoded maps.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, sections 4.1 and 4.2, appendix A.4.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops.common.precision import is_autocast_on
from mmattn.registry import MODELS

from ..initialization import Initializable, init_transformer
from .blocks import DeformableDETRDecoderLayer, run_layer
from .geometry import (
    box_positions,
    box_proposals,
    check_maps,
    flatten_maps,
    flatten_masks,
    geometry_dtype,
    inverse_sigmoid,
    map_shapes,
    on_levels,
    valid_ratios,
)


class DecoderOutput(NamedTuple):
    """Inputs of mmdet's `DeformableDETRHead`, and the first stage's boxes.

    Attributes:
        hidden_states: queries after each layer, shape (layers, B, Q, C).
        references: references before the first layer and after each one, layers + 1
            in all: points (B, Q, 2) or boxes (B, Q, 4), (x, y, w, h), relative to the
            image without padding. The boxes of a layer are its branch's output plus
            `inverse_sigmoid(references[layer])`. References after a layer are detached.
        enc_class: first stage's class logits of each pixel, (B, S, K), or None.
        enc_coord: first stage's boxes of each pixel, (B, S, 4) in 0..1, or None. A
            pixel without a proposal has ones.
    """

    hidden_states: Tensor
    references: list[Tensor]
    enc_class: Tensor | None
    enc_coord: Tensor | None


@MODELS.register_module()
class DeformableDETRDecoder(Initializable):
    """Decoder layers, queries, and the first references.

    It has the parameters of the official code
    (https://github.com/fundamentalvision/Deformable-DETR, Apache-2.0). The branches
    that predict classes and boxes belong to the head, which passes them in.

    Args:
        embed_dims: channels C, divisible by 4.
        num_queries: queries Q.
        num_layers: number of layers.
        num_heads, num_levels, num_points, feedforward_channels: see
            `DeformableDETRLayer`.
        dropout: rate as there, and of the weights of the self-attention.
        with_box_refine: whether each layer starts from the boxes of the one before.
        as_two_stage: whether the first references are the boxes of the pixels with the
            highest scores; requires `with_box_refine`.
        with_cp: recompute each layer's activations in the backward.
        init_cfg: mmengine initialization.

    Raises:
        ValueError: `embed_dims` is not divisible, a setting is below 1, or two stages
            come without refinement.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_queries: int = 300,
        num_layers: int = 6,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        feedforward_channels: int = 1024,
        dropout: float = 0.1,
        *,
        with_box_refine: bool = False,
        as_two_stage: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__()
        if embed_dims % 4:
            raise UserError(
                f'embed_dims must be divisible by 4 for positions, got {embed_dims=}'
            )
        if min(num_queries, num_layers) < 1:
            raise UserError(
                'num_queries and num_layers must be at least 1, got '
                f'{num_queries=}, {num_layers=}'
            )
        if as_two_stage and not with_box_refine:
            raise UserError(
                'as_two_stage=True requires with_box_refine=True, got '
                f'{with_box_refine=}'
            )
        self.embed_dims = embed_dims
        self.num_queries = num_queries
        self.num_layers = num_layers
        self.num_levels = num_levels
        self.with_box_refine = with_box_refine
        self.as_two_stage = as_two_stage
        self.with_cp = with_cp
        self.init_cfg = init_cfg
        if as_two_stage:
            self.enc_output = nn.Linear(embed_dims, embed_dims)
            self.enc_output_norm = nn.LayerNorm(embed_dims)
            self.pos_trans = nn.Linear(2 * embed_dims, 2 * embed_dims)
            self.pos_trans_norm = nn.LayerNorm(2 * embed_dims)
        else:
            self.reference_points = nn.Linear(embed_dims, 2)
        sizes = embed_dims, num_heads, num_levels, num_points, feedforward_channels
        self.layers = nn.ModuleList(
            DeformableDETRDecoderLayer(*sizes, dropout) for _ in range(num_layers)
        )
        init_transformer(self)
        if not as_two_stage:
            nn.init.zeros_(self.reference_points.bias)
            self.query_embed = nn.Embedding(num_queries, 2 * embed_dims)

    def forward(
        self,
        feats: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
        cls_branches: nn.ModuleList | None = None,
        reg_branches: nn.ModuleList | None = None,
    ) -> DecoderOutput:
        """Decode queries.

        Args:
            feats: L encoded maps of shape (B, C, H, W), from the finest on.
            masks: shape (B, H, W) for each map, True at padding, which is on the right
                and at the bottom; None where there is no padding.
            cls_branches: the head's modules (..., C) -> (..., K) for class logits. Two
                stages require them, and the first stage uses the last one.
            reg_branches: the head's modules (..., C) -> (..., 4) for logits of boxes
                relative to the reference, one for each layer and, with two stages, one
                for the first stage. Refinement requires them.

        Raises:
            ValueError: wrong number of maps or channels, masks of other shapes, missing
                branches, or fewer pixels than queries in two stages.
        """
        check_maps(feats, masks, self.num_levels, self.embed_dims)
        self._check_branches(cls_branches, reg_branches)
        shapes, memory = map_shapes(feats), flatten_maps(feats)
        padding_mask = flatten_masks(masks)
        ratios = valid_ratios(masks, self.geometry_dtype)
        if self.as_two_stage:
            enc_class, enc_logits = self.first_stage(
                memory, shapes, ratios, padding_mask, cls_branches[-1], reg_branches[-1]
            )
            enc_coord = enc_logits.sigmoid()
            reference = self.best_boxes(enc_class, enc_coord)
            query, positions = self.box_queries(reference)
        else:
            enc_class = enc_coord = None
            query, positions, reference = self.learned_queries(len(memory))
        hidden_states, references = self.decode(
            query,
            positions,
            reference,
            memory,
            shapes,
            ratios,
            padding_mask,
            reg_branches if self.with_box_refine else None,
        )
        return DecoderOutput(hidden_states, references, enc_class, enc_coord)

    def decode(
        self,
        query: Tensor,
        positions: Tensor,
        reference: Tensor,
        memory: Tensor,
        shapes: Sequence[tuple[int, int]],
        ratios: Tensor | None = None,
        padding_mask: Tensor | None = None,
        reg_branches: Sequence[nn.Module] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the layers alone, and refine the references with `reg_branches`.

        Args:
            query, positions: shape (B, Q, C).
            reference: first points (B, Q, 2) or boxes (B, Q, 4).
            memory: shape (B, S, C), pixels of all maps, level after level.
            shapes: height and width of each map.
            ratios: see `valid_ratios`; None without padding.
            padding_mask: shape (B, S), True at padding; None for none.

        Returns:
            The first two of `DecoderOutput`.
        """
        hidden_states, references = [], [reference]
        for index, layer in enumerate(self.layers):
            locations = on_levels(reference, ratios)
            arguments = query, positions, memory, locations, shapes, padding_mask
            query = run_layer(layer, self.with_cp, *arguments)
            if reg_branches is not None:
                # Not under `no_grad`: autocast would cache the branch's cast weights
                # without their gradient, and the head would use them.
                reference = refine(reg_branches[index](query), reference).detach()
            hidden_states.append(query)
            references.append(reference)
        return torch.stack(hidden_states), references

    @property
    def geometry_dtype(self) -> torch.dtype:
        return geometry_dtype(self.layers[0].norm1.weight)

    def learned_queries(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and their positions, (B, Q, C), and points (B, Q, 2)."""
        positions, query = self.query_embed.weight.chunk(2, dim=-1)
        # Every location starts from these few numbers, so they keep full precision.
        device_type, exact = positions.device.type, nullcontext()
        if is_autocast_on(device_type):
            exact = torch.autocast(device_type, enabled=False)
        with exact:
            reference = self.reference_points(positions).to(self.geometry_dtype)
        reference = reference.sigmoid()
        return tuple(x.expand(batch, -1, -1) for x in (query, positions, reference))

    def first_stage(
        self,
        memory: Tensor,
        shapes: Sequence[tuple[int, int]],
        ratios: Tensor | None,
        padding_mask: Tensor | None,
        cls_branch: nn.Module,
        reg_branch: nn.Module,
    ) -> tuple[Tensor, Tensor]:
        """Return class logits (B, S, K) and logits of boxes (B, S, 4) of the pixels.

        The logits of a pixel without a proposal are infinite.
        """
        logits, valid = box_proposals(
            shapes,
            ratios,
            padding_mask,
            dtype=self.geometry_dtype,
            device=memory.device,
        )
        memory = self.enc_output_norm(self.enc_output(memory.masked_fill(~valid, 0)))
        return cls_branch(memory), reg_branch(memory) + logits

    def best_boxes(self, enc_class: Tensor, enc_coord: Tensor) -> Tensor:
        """Return boxes (B, Q, 4) of the pixels with the highest first logits."""
        Q, S = self.num_queries, enc_class.shape[1]
        if S < Q:
            raise UserError(f'{Q} queries require as many pixels, the maps have {S}')
        best = enc_class[..., 0].topk(Q, dim=1).indices
        return enc_coord.detach().gather(1, best[..., None].expand(-1, -1, 4))

    def box_queries(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and their positions, (B, Q, C), from boxes (B, Q, 4)."""
        encoded = box_positions(boxes, self.embed_dims).to(self.pos_trans.weight.dtype)
        positions, query = self.pos_trans_norm(self.pos_trans(encoded)).chunk(2, dim=-1)
        return query, positions

    def _check_branches(self, cls_branches, reg_branches):
        count = self.num_layers + self.as_two_stage
        needed = {
            'cls_branches': cls_branches if self.as_two_stage else (None,) * count,
            'reg_branches': reg_branches if self.with_box_refine else (None,) * count,
        }
        for name, branches in needed.items():
            if branches is None or len(branches) != count:
                given = None if branches is None else len(branches)
                raise UserError(f'the decoder requires {count} {name}, got {given}')


def refine(delta: Tensor, reference: Tensor) -> Tensor:
    """Return the boxes (B, Q, 4) that logits `delta` make of points or boxes."""
    shift = inverse_sigmoid(reference)
    if shift.shape[-1] == 2:
        return torch.cat([delta[..., :2] + shift, delta[..., 2:]], dim=-1).sigmoid()
    return (delta + shift).sigmoid()
