"""DeformableDETR: mmdet's detector on our encoder and decoder.

Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection",
https://arxiv.org/abs/2010.04159. mmdet's detector of that name builds encoder and
decoder from fixed classes, and itself owns level embeddings, positions, masks and
queries. Here encoder and decoder are registered modules that own them, so that a config
can replace either. Branches, matching, losses and predictions come from mmdet's
`DeformableDETRHead`.
"""

from collections.abc import Sequence

import torch
from mmdet.models.detectors import BaseDetector
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample
from torch import Tensor

from mmattn.errors import UserError
from mmattn.models.layers import DecoderOutput
from mmattn.registry import MODELS
from mmattn.weights.layouts.deformable_detr import convert_any_layout

# Arguments of the head that follow from the decoder.
DERIVED = ('share_pred_layer', 'num_pred_layer', 'as_two_stage')


@MODELS.register_module()
class DeformableDETR(BaseDetector):
    """Detector of backbone, neck, encoder, decoder and head, each from a config.

    Types without a scope are mmdet's. Checkpoints of the official code, of mmdet and of
    Hugging Face's transformers load as they are, see
    `mmattn.weights.layouts.deformable_detr`.

    Args:
        backbone: config of any backbone that returns maps.
        neck: config of a neck, such as `ChannelMapper`, that returns as many maps as
            the encoder takes, in its width. None if the backbone's maps fit.
        encoder: config of a module that takes maps and their padding masks and returns
            maps, such as `DeformableDETREncoder`. None if the neck encodes the maps.
        decoder: config of a module that takes maps, masks and the head's branches and
            returns a `DecoderOutput`, such as `DeformableDETRDecoder`. It alone decides
            on refinement, stages and the number of queries.
        bbox_head: config of a `DeformableDETRHead`, without the three arguments that
            follow from the decoder: `share_pred_layer`, `num_pred_layer` and
            `as_two_stage`.
        train_cfg: settings of the head, with its `assigner`.
        test_cfg: settings of the head.
        data_preprocessor, init_cfg: see mmdet's `BaseDetector`.

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
                raise UserError(f'DeformableDETR requires a {name}, got None')
        if given := [key for key in DERIVED if key in bbox_head]:
            raise UserError(
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
        self.register_load_state_dict_pre_hook(convert_any_layout)

    def _check_settings(self):
        parts = dict(encoder=self.encoder, decoder=self.decoder, head=self.bbox_head)
        for setting in ('embed_dims', 'num_levels'):
            values = {
                name: getattr(part, setting)
                for name, part in parts.items()
                if hasattr(part, setting)
            }
            if len(set(values.values())) > 1:
                raise UserError(
                    f'DeformableDETR: encoder, decoder and head differ in {setting}: '
                    f'{values}'
                )

    def extract_feat(self, batch_inputs: Tensor) -> Sequence[Tensor]:
        """Return the maps (B, C, H, W), from the finest on, of images (B, 3, H, W)."""
        feats = self.backbone(batch_inputs)
        return self.neck(feats) if self.with_neck else feats

    def forward_transformer(
        self,
        feats: Sequence[Tensor],
        batch_data_samples: Sequence[DetDataSample] | None = None,
    ) -> DecoderOutput:
        """Encode maps and decode queries; without samples there is no padding."""
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
        """Return the losses of each decoder layer and of the first stage, by name.

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
        """Return the samples with `pred_instances`: boxes, scores and labels.

        Args:
            batch_inputs: padded images, (B, 3, H, W).
            batch_data_samples: with `img_shape` and `batch_input_shape`, and with
                `scale_factor` to rescale.
            rescale: whether boxes refer to the images before they were resized.
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
        """Return class logits (layers, B, Q, K) and boxes (layers, B, Q, 4) in 0..1."""
        out = self.forward_transformer(
            self.extract_feat(batch_inputs), batch_data_samples
        )
        return self.bbox_head(out.hidden_states, out.references)


def padding_masks(
    feats: Sequence[Tensor], batch_data_samples: Sequence[DetDataSample] | None
) -> list[Tensor] | None:
    """Return the masks of the maps, True at padding, or None without any padding.

    An image's padding is the part of `batch_input_shape` outside of `img_shape`. Its
    mask is resized to each map by nearest interpolation.

    Args:
        feats: maps of shape (B, C, H, W).
        batch_data_samples: B samples, or None for images without padding.

    Returns:
        Masks of shape (B, H, W) and dtype bool, one for each map.
    """
    if batch_data_samples is None:
        return None
    batch_shape = tuple(batch_data_samples[0].batch_input_shape[:2])
    shapes = [tuple(sample.img_shape[:2]) for sample in batch_data_samples]
    if all(shape == batch_shape for shape in shapes):
        return None
    image_size = torch.empty(len(shapes), 2, dtype=torch.int64, device=feats[0].device)
    for row, shape in zip(image_size, shapes, strict=True):
        for place, side in zip(row, shape, strict=True):
            place.fill_(side)  # CUDA graphs capture no copy from the host
    return masks_of_sizes(feats, image_size, batch_shape)


def masks_of_sizes(
    feats: Sequence[Tensor], image_size: Tensor, batch_shape: Sequence[int]
) -> list[Tensor]:
    """Return the masks (B, H, W) of maps, True at padding.

    Args:
        feats: maps of shape (B, C, H, W).
        image_size: height and width of each image without padding, shape (B, 2).
        batch_shape: height and width with padding.
    """
    masks = []
    for feat in feats:
        beyond = []  # (B, H) and (B, W)
        for axis, (full, side) in enumerate(
            zip(batch_shape, feat.shape[-2:], strict=True)
        ):
            # The pixel of the image that nearest interpolation takes, as `interpolate`
            # computes it.
            index = torch.arange(side, dtype=torch.float32, device=feat.device)
            index = (index * (full / side)).to(image_size.dtype)
            beyond.append(index >= image_size[:, axis, None])
        rows, columns = beyond
        masks.append(rows[:, :, None] | columns[:, None])
    return masks
