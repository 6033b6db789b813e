"""Detections of a Deformable DETR, ours or mmdet's."""

import math

import torch
from mmcv.cnn import Linear
from mmcv.cnn.bricks.drop import Dropout
from mmcv.cnn.bricks.transformer import FFN, MultiheadAttention
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.models.dense_heads import DeformableDETRHead
from mmdet.models.detectors import DeformableDETR as MmdetDeformableDETR
from mmdet.models.layers import SinePositionalEncoding
from mmdet.models.layers.transformer import deformable_detr_layers as mmdet_layers
from mmengine.model import ModuleList, Sequential
from torch import Tensor, nn

from mmattn.models.detectors.deformable_detr import masks_of_sizes
from mmattn.models.layers import DeformableDETRDecoder, DeformableDETREncoder
from mmattn.models.layers.deformable_detr.decoder import refine
from mmattn.weights.layouts.deformable_detr import convert_state_dict

from ..errors import ExportError
from .parts import Detector, check_class

# Modules of mmdet's transformer that ours computes. Others, such as another activation,
# are refused.
KNOWN_MODULES = {
    mmdet_layers.DeformableDetrTransformerEncoder,
    mmdet_layers.DeformableDetrTransformerEncoderLayer,
    mmdet_layers.DeformableDetrTransformerDecoder,
    mmdet_layers.DeformableDetrTransformerDecoderLayer,
    *(FFN, MultiheadAttention, MultiScaleDeformableAttention, ModuleList, Sequential),
    *(nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear),
    *(
        Linear,
        nn.Linear,
        nn.LayerNorm,
        nn.ReLU,
        Dropout,
        nn.Dropout,
        nn.Identity,
        nn.ModuleList,
    ),
}
KNOWN_SETTINGS = {
    FFN: dict(num_fcs=2, add_identity=True),
    MultiScaleDeformableAttention: dict(batch_first=True),
    MultiheadAttention: dict(batch_first=True),
    nn.MultiheadAttention: dict(add_zero_attn=False),
    nn.LayerNorm: dict(eps=1e-5, elementwise_affine=True),
    SinePositionalEncoding: dict(
        normalize=True, temperature=10000, scale=2 * math.pi, eps=1e-6
    ),
}


class DeformableDETR(Detector):
    """Detect as `predict(..., rescale=False)` of a Deformable DETR.

    The padding masks, valid ratios and reference points come from `image_size`. mmdet's
    detector runs with our encoder and decoder, which take over its weights.

    Args:
        model: a `DeformableDETR` of ours or of mmdet. K is `max_per_img` of its head.

    Raises:
        ExportError: the head is no `DeformableDETRHead`, K is more than its number of
            predictions, or mmdet's transformer has a module or setting that ours lacks.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.head = model.bbox_head
        check_class(self.head, DeformableDETRHead)
        self.backbone = model.backbone
        self.neck = model.neck if model.with_neck else nn.Identity()
        if isinstance(model, MmdetDeformableDETR):
            check_transformer(model)
            self.encoder, self.decoder = converted_transformer(model)
        else:
            self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, image: Tensor, image_size: Tensor) -> tuple[Tensor, ...]:
        feats = self.neck(self.backbone(image))
        masks = masks_of_sizes(feats, image_size, image.shape[-2:])
        if self.encoder is not None:
            feats = self.encoder(feats, masks)
        out = self.decoder(
            feats,
            masks,
            cls_branches=self.head.cls_branches,
            reg_branches=self.head.reg_branches,
        )
        query, last = out.hidden_states[-1], len(out.hidden_states) - 1
        logits = self.head.cls_branches[last](query)
        boxes = refine(self.head.reg_branches[last](query), out.references[last])
        return self.detections(logits, boxes, image_size)

    def detections(
        self, logits: Tensor, boxes: Tensor, image_size: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Select the K highest scores of logits (B, Q, classes) and their boxes."""
        if self.head.loss_cls.use_sigmoid:
            scores = logits.sigmoid().flatten(1)
        else:
            scores, classes = logits.softmax(-1)[..., :-1].max(-1)
        Q, predictions = logits.shape[1], scores.shape[1]
        K = (self.head.test_cfg or {}).get('max_per_img', Q)
        if not 1 <= K <= predictions:
            raise ExportError(
                f'test_cfg.max_per_img must be from 1 to {predictions}, the number of '
                f'predictions of the head, got {K}'
            )
        scores, index = scores.topk(K)
        if self.head.loss_cls.use_sigmoid:
            labels = index % self.head.num_classes
            index = index // self.head.num_classes
        else:
            labels = classes.gather(1, index)
        boxes = boxes.gather(1, index[..., None].expand(-1, -1, 4))
        centers, half_sizes = boxes[..., :2], boxes[..., 2:] / 2
        corners = torch.cat([centers - half_sizes, centers + half_sizes], dim=-1)
        limits = image_size.flip(1).repeat(1, 2)[:, None].to(boxes.dtype)  # (B, 1, 4)
        corners = corners.clamp(0.0, 1.0) * limits
        return torch.cat([corners, scores[..., None]], dim=-1), labels


def check_transformer(model: MmdetDeformableDETR):
    """Raise an ExportError for a module or setting that our transformer lacks."""
    parts = model.encoder, model.decoder
    modules = [module for part in parts for module in part.modules()]
    for module in modules:
        if type(module) not in KNOWN_MODULES:
            raise ExportError(
                f'{type(module).__name__} in the transformer of a Deformable DETR '
                'cannot be exported'
            )
    for module in (*modules, model.positional_encoding):
        for name, value in KNOWN_SETTINGS.get(type(module), {}).items():
            if (given := getattr(module, name)) != value:
                raise ExportError(
                    f'{type(module).__name__} of a Deformable DETR can be exported '
                    f'with {name}={value!r} only, got {given!r}'
                )
    check_class(model.positional_encoding, SinePositionalEncoding)


@torch.no_grad()
def converted_transformer(
    model: MmdetDeformableDETR,
) -> tuple[DeformableDETREncoder, DeformableDETRDecoder]:
    """Return our encoder and decoder with the settings and weights of mmdet's."""

    def settings(part, attention):
        return dict(
            embed_dims=part.embed_dims,
            num_layers=part.num_layers,
            num_heads=attention.num_heads,
            num_levels=attention.num_levels,
            num_points=attention.num_points,
            feedforward_channels=part.layers[0].ffn.feedforward_channels,
        )

    layer = model.decoder.layers[0]
    if layer.self_attn.num_heads != layer.cross_attn.num_heads:
        raise ExportError(
            'the attentions of a Deformable DETR must have the same num_heads, got '
            f'{layer.self_attn.num_heads} and {layer.cross_attn.num_heads}'
        )
    encoder = DeformableDETREncoder(
        **settings(model.encoder, model.encoder.layers[0].self_attn),
        position_offset=model.positional_encoding.offset,
    )
    decoder = DeformableDETRDecoder(
        **settings(model.decoder, layer.cross_attn),
        num_queries=model.num_queries,
        with_box_refine=model.with_box_refine,
        as_two_stage=model.as_two_stage,
    )
    weights = convert_state_dict(model.state_dict())
    for name, part in (('encoder', encoder), ('decoder', decoder)):
        part.to(next(model.parameters())).load_state_dict(
            {
                key.removeprefix(f'{name}.'): value
                for key, value in weights.items()
                if key.startswith(f'{name}.')
            }
        )
    return encoder, decoder
