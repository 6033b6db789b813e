"""DeformableDETR: mmdet's detector on our encoder and decoder.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159. mmdet's detector of that name builds its encoder and
decoder from plain classes and keeps level embeddings, positions, masks and queries to
itself; here both are registered modules that own them, so either can be another one.
Branches, matching, losses and predictions are mmdet's `DeformableDETRHead`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmdet.models.detectors import BaseDetector
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample
from torch import Tensor

from mmattn.models.checkpoints.deformable_detr import take_any_layout
from mmattn.models.layers import DecoderOutput
from mmattn.registry import MODELS

# Arguments of the head that follow from the decoder.
DERIVED = ('share_pred_layer', 'num_pred_layer', 'as_two_stage')


@MODELS.register_module()
class DeformableDETR(BaseDetector):
    """Backbone, neck, encoder, decoder and head, each from a config.

    Types without a scope are mmdet's. Checkpoints of the official code, of mmdet and of
    Hugging Face's transformers load as they are (`deformable_detr_checkpoints`).

    Args:
        backbone: of any backbone that returns maps.
        neck: what gives the maps the encoder's number and width, as a `ChannelMapper`
            does; None where the backbone's have them.
        encoder: maps and their padding masks in, maps out, as `DeformableDETREncoder`.
            None where the neck encodes by itself.
        decoder: maps, masks and the head's branches in, a `DecoderOutput` out, as
            `DeformableDETRDecoder`. Refinement, stages and the number of queries are
            settings of it alone.
        bbox_head: as `DeformableDETRHead`, without the three arguments that follow from
            the decoder: whether branches are shared, how many there are, and whether
            the first stage has one.
        train_cfg: of the head, `assigner` in it.
        test_cfg: of the head.
        data_preprocessor, init_cfg: as in any detector of mmdet.

    Raises:
        ValueError: the head has an argument that follows from the decoder, or encoder,
            decoder and head differ in levels or widths.
    """

    def __init__(
        self,
        backbone: dict,
        neck: dict | None = None,
        encoder: dict | None = None,
        decoder: dict | None = None,
        bbox_head: dict | None = None,
        *,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        for name, cfg in dict(decoder=decoder, bbox_head=bbox_head).items():
            if cfg is None:
                raise ValueError(f'DeformableDETR needs a {name}, got None')
        if given := [key for key in DERIVED if key in bbox_head]:
            raise ValueError(
                f'DeformableDETR: {", ".join(given)} of bbox_head follow from the '
                f'decoder, got {bbox_head}'
            )
        self.train_cfg = train_cfg
        self.test_cfg = test_cfg
        self.backbone = MMDET_MODELS.build(backbone)
        if neck is not None:
            self.neck = MMDET_MODELS.build(neck)
        self.encoder = None if encoder is None else MMDET_MODELS.build(encoder)
        self.decoder = MMDET_MODELS.build(decoder)
        two_stage = self.decoder.as_two_stage
        derived = dict(
            share_pred_layer=not self.decoder.with_box_refine,
            num_pred_layer=self.decoder.num_layers + two_stage,
            as_two_stage=two_stage,
        )
        self.bbox_head = MMDET_MODELS.build(
            dict(**bbox_head, **derived, train_cfg=train_cfg, test_cfg=test_cfg)
        )
        self._check_settings()
        self.register_load_state_dict_pre_hook(take_any_layout)

    def _check_settings(self):
        parts = dict(encoder=self.encoder, decoder=self.decoder, head=self.bbox_head)
        for setting in ('embed_dims', 'num_levels'):
            values = {
                name: getattr(part, setting)
                for name, part in parts.items()
                if hasattr(part, setting)
            }
            if len(set(values.values())) > 1:
                raise ValueError(
                    f'DeformableDETR: encoder, decoder and head differ in {setting}: '
                    f'{values}'
                )

    def extract_feat(self, batch_inputs: Tensor) -> Sequence[Tensor]:
        """Maps (B, C, H, W), from the finest on, of images (B, 3, H, W)."""
        feats = self.backbone(batch_inputs)
        return self.neck(feats) if self.with_neck else feats

    def forward_transformer(
        self,
        feats: Sequence[Tensor],
        batch_data_samples: Sequence[DetDataSample] | None = None,
    ) -> DecoderOutput:
        """Encodes maps and decodes queries; without samples there is no padding."""
        masks = padding_masks(feats, batch_data_samples)
        if self.encoder is not None:
            feats = self.encoder(feats, masks)
        return self.decoder(
            feats,
            masks,
            cls_branches=self.bbox_head.cls_branches,
            reg_branches=self.bbox_head.reg_branches,
        )

    def loss(
        self, batch_inputs: Tensor, batch_data_samples: Sequence[DetDataSample]
    ) -> dict[str, Tensor]:
        """Losses of each layer of the decoder and of the first stage, by their names.

        Args:
            batch_inputs: padded images, (B, 3, H, W).
            batch_data_samples: with `img_shape`, `batch_input_shape` and
                `gt_instances`.
        """
        out = self.forward_transformer(
            self.extract_feat(batch_inputs), batch_data_samples
        )
        return self.bbox_head.loss(
            out.hidden_states,
            out.references,
            enc_outputs_class=out.enc_class,
            enc_outputs_coord=out.enc_coord,
            batch_data_samples=batch_data_samples,
        )

    def predict(
        self,
        batch_inputs: Tensor,
        batch_data_samples: Sequence[DetDataSample],
        rescale: bool = True,
    ) -> list[DetDataSample]:
        """The samples, with `pred_instances`: boxes, scores and labels.

        Args:
            batch_inputs: padded images, (B, 3, H, W).
            batch_data_samples: with `img_shape` and `batch_input_shape`, and with
                `scale_factor` to rescale.
            rescale: whether boxes are those of the images before they were resized.
        """
        out = self.forward_transformer(
            self.extract_feat(batch_inputs), batch_data_samples
        )
        results = self.bbox_head.predict(
            out.hidden_states,
            out.references,
            batch_data_samples=batch_data_samples,
            rescale=rescale,
        )
        return self.add_pred_to_datasample(batch_data_samples, results)

    def _forward(
        self,
        batch_inputs: Tensor,
        batch_data_samples: Sequence[DetDataSample] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Class logits (layers, B, Q, K) and boxes (layers, B, Q, 4) in 0..1."""
        out = self.forward_transformer(
            self.extract_feat(batch_inputs), batch_data_samples
        )
        return self.bbox_head(out.hidden_states, out.references)


def padding_masks(
    feats: Sequence[Tensor], batch_data_samples: Sequence[DetDataSample] | None
) -> list[Tensor] | None:
    """What is padding in each of the maps, True there; None if nothing is.

    The image's mask, `batch_input_shape` without `img_shape`, in the size of each map
    by nearest interpolation.

    Args:
        feats: maps of shape (B, C, H, W).
        batch_data_samples: B of them, or None for images without padding.

    Returns:
        Masks of shape (B, H, W) and dtype bool, one for each map.
    """
    if batch_data_samples is None:
        return None
    batch_shape = tuple(batch_data_samples[0].batch_input_shape[:2])
    shapes = [tuple(sample.img_shape[:2]) for sample in batch_data_samples]
    if all(shape == batch_shape for shape in shapes):
        return None
    mask = feats[0].new_ones((1, len(shapes), *batch_shape), dtype=torch.uint8)
    for index, (H, W) in enumerate(shapes):
        mask[0, index, :H, :W] = 0
    return [F.interpolate(mask, size=feat.shape[-2:])[0].bool() for feat in feats]
