"""Semantic scores or labels of Mask2Former."""

import torch
import torch.nn.functional as F
from mmseg.models.decode_heads import Mask2FormerHead
from torch import Tensor, nn

from mmattn.models.necks import Mask2FormerPixelDecoder

from ..errors import ExportError

OUTPUTS = ('logits', 'labels')


class Mask2Former(nn.Module):
    """Return scores (B, classes, H, W), or labels (B, H, W), at the size of the image.

    Args:
        model: an `EncoderDecoder` of mmseg in mode 'whole' with a `Mask2FormerHead` and
            our pixel decoder.
        output: 'logits' for the scores, which mmseg calls logits, or 'labels'.

    Raises:
        ExportError: another head or pixel decoder, or the model slides a window.
        ValueError: another `output`.
    """

    task = 'segmentation'
    input_names = ('image',)

    def __init__(self, model: nn.Module, output: str = 'logits'):
        super().__init__()
        if output not in OUTPUTS:
            raise ValueError(f'`output` must be one of {OUTPUTS}, got {output!r}')
        head = model.decode_head
        if type(head) is not Mask2FormerHead:
            raise ExportError(
                f'the decode head must be a Mask2FormerHead, got {type(head).__name__}'
            )
        if type(head.pixel_decoder) is not Mask2FormerPixelDecoder:
            raise ExportError(
                f'the pixel decoder {type(head.pixel_decoder).__name__} cannot be '
                'exported; mmattn.Mask2FormerPixelDecoder takes its settings and '
                'weights'
            )
        mode = model.test_cfg.get('mode', 'whole')
        if mode != 'whole':
            raise ExportError(
                f"test_cfg.mode must be 'whole', got {mode!r}: a graph has no sliding "
                'window. Set model.test_cfg.mode=whole'
            )
        self.backbone = model.backbone
        self.neck = model.neck if model.with_neck else nn.Identity()
        self.decode_head = head
        self.output_names = (output,)
        self.metadata = dict(align_corners=bool(model.align_corners))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        logits, masks = self.decode_head(self.neck(self.backbone(image)), None)
        masks = F.interpolate(masks[-1], image.shape[-2:], mode='bilinear').sigmoid()
        classes = logits[-1].softmax(-1)[..., :-1]
        scores = torch.einsum('bqk,bqhw->bkhw', classes, masks)
        return (scores if self.output_names == ('logits',) else scores.argmax(1),)
