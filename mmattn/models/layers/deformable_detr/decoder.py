"""Decoder of Deformable DETR: queries that look at the encoded maps.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159, sections 4.1 and 4.2, appendix A.4.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmattn.ops.backend import is_autocast_on
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
    """What mmdet's `DeformableDETRHead` asks for, and the first stage's boxes.

    Attributes:
        hidden_states: queries after each layer, shape (layers, B, Q, C).
        references: before the first layer and after each one, layers + 1 of shape
            (B, Q, 2), points, or (B, Q, 4), boxes (x, y, w, h), relative to what is no
            padding. The boxes of a layer are its branch's output plus
            `inverse_sigmoid(references[layer])`. No gradient flows into those after a
            layer.
        enc_class: first stage's class logits of each pixel, (B, S, K); else None.
        enc_coord: first stage's boxes of each pixel, (B, S, 4) in 0..1; else None.
            All ones where there is no proposal.
    """

    hidden_states: Tensor
    references: list[Tensor]
    enc_class: Tensor | None
    enc_coord: Tensor | None


@MODELS.register_module(name=['DeformableDETRDecoder', 'DeformableDetrDecoder'])
class DeformableDETRDecoder(Initializable):
    """Encoded maps in, queries and their references out.

    Parameters are those of the official code
    (https://github.com/fundamentalvision/Deformable-DETR, Apache-2.0), with the queries
    and what makes the first references, which the decoder owns. The branches that
    predict classes and boxes belong to the head and are handed over.

    Args:
        embed_dims: channels C, divisible by 4.
        num_queries: queries Q.
        num_layers: layers.
        num_heads: heads M; divides C.
        num_levels: maps L.
        num_points: points P of each head on each map.
        feedforward_channels: width of the feed-forward networks.
        dropout: rate of the attention's weights, after attention, and inside and after
            the feed-forward networks.
        with_box_refine: whether each layer starts from the boxes of the one before.
        as_two_stage: whether the first references are the boxes of the pixels with the
            highest scores; needs `with_box_refine`.
        with_cp: whether the backward computes the layers' activations anew.
        init_cfg: mmengine initialization.

    Raises:
        ValueError: channels that do not divide, a setting below 1, or two stages
            without refinement.
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
            raise ValueError(
                f'positions need channels in fours, got embed_dims={embed_dims}'
            )
        if min(num_queries, num_layers) < 1:
            raise ValueError(
                f'needs queries and layers, got {num_queries=}, {num_layers=}'
            )
        if as_two_stage and not with_box_refine:
            raise ValueError(
                f'as_two_stage=True needs with_box_refine=True, got {with_box_refine=}'
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
        self.layers = nn.ModuleList(
            DeformableDETRDecoderLayer(
                embed_dims,
                num_heads,
                num_levels,
                num_points,
                feedforward_channels,
                dropout,
            )
            for _ in range(num_layers)
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
        """Decoded queries.

        Args:
            feats: L encoded maps of shape (B, C, H, W), from the finest on.
            masks: shape (B, H, W) for each map, True at padding, which is on the right
                and at the bottom; None where there is no padding.
            cls_branches: modules (..., C) -> (..., K) of the head, class logits. The
                last one serves the first stage of two; not used otherwise.
            reg_branches: modules (..., C) -> (..., 4) of the head, one for each layer,
                logits of boxes relative to the reference; and one for the first stage
                of two. Not used without refinement.

        Raises:
            ValueError: another number of maps or channels, masks that do not fit,
                branches that are missing, or fewer pixels than queries in two stages.
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
        """The layers alone; refines with `reg_branches`.

        Args:
            query, positions: shape (B, Q, C).
            reference: first points (B, Q, 2) or boxes (B, Q, 4).
            memory: shape (B, S, C), pixels of all maps, level after level.
            shapes: height and width of each map.
            ratios: part of each map's sides that is no padding, (width, height), shape
                (B, L, 2); None for all.
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
                # Not under `no_grad`: autocast would keep the branch's cast weights
                # without their gradient, for the head to use.
                reference = refine(reg_branches[index](query), reference).detach()
            hidden_states.append(query)
            references.append(reference)
        return torch.stack(hidden_states), references

    @property
    def geometry_dtype(self) -> torch.dtype:
        return geometry_dtype(self.layers[0].norm1.weight)

    def learned_queries(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and their positions, (B, Q, C), and first points, (B, Q, 2)."""
        positions, query = self.query_embed.weight.chunk(2, dim=-1)
        # Few numbers that every location starts from: not in autocast's precision.
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
        """Class logits (B, S, K) and logits of boxes (B, S, 4) of the pixels.

        The latter are infinite where there is no proposal.
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
        """Boxes (B, Q, 4) of the pixels with the highest logits of the first class."""
        Q, S = self.num_queries, enc_class.shape[1]
        if S < Q:
            raise ValueError(f'{Q} queries need as many pixels, the maps have {S}')
        best = enc_class[..., 0].topk(Q, dim=1).indices
        return enc_coord.detach().gather(1, best[..., None].expand(-1, -1, 4))

    def box_queries(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and their positions, (B, Q, C), from boxes (B, Q, 4)."""
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
                raise ValueError(f'needs {count} {name}, got {given}')


def refine(delta: Tensor, reference: Tensor) -> Tensor:
    """Boxes (B, Q, 4): `delta`, logits, around points or boxes."""
    shift = inverse_sigmoid(reference)
    if shift.shape[-1] == 2:
        return torch.cat([delta[..., :2] + shift, delta[..., 2:]], dim=-1).sigmoid()
    return (delta + shift).sigmoid()


DeformableDetrDecoder = DeformableDETRDecoder  # its name in version 0.1
