"""Logits or labels of a semantic segmentor, and scores of Mask2Former."""

import torch
import torch.nn.functional as F
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from mmattn.errors import check_choice
from mmattn.models.necks import Mask2FormerPixelDecoder

from ..errors import ExportError
from .parts import check_methods

OUTPUTS = ('logits', 'labels')


class Segmentor(nn.Module):
    """Return logits (B, classes, H, W), or labels (B, H, W), at the size of the image.

    Auxiliary heads are left out.

    Args:
        model: an `EncoderDecoder` of mmseg in mode 'whole', whose decode head makes one
            map that is resized to the image, such as `UPerHead`, `FPNHead`, `FCNHead`.
        output: 'logits' or 'labels'. With one output channel, logits are before the
            sigmoid, and labels are 1 above the head's threshold.

    Raises:
        ExportError: the head predicts in another way, or the model slides a window.
        ValueError: another `output`.
    """

    task = 'segmentation'
    input_names = ('image',)

    def __init__(self, model: nn.Module, output: str = 'logits'):
        super().__init__()
        check_choice('`output`', output, OUTPUTS)
        self.check_head(model.decode_head)
        mode = model.test_cfg.get('mode', 'whole')
        if mode != 'whole':
            raise ExportError(
                f"test_cfg.mode must be 'whole', got {mode!r}: a graph has no sliding "
                'window. Set model.test_cfg.mode=whole'
            )
        self.backbone = model.backbone
        self.neck = model.neck if model.with_neck else nn.Identity()
        self.decode_head = model.decode_head
        self.output_names = (output,)
        self.metadata = dict(align_corners=bool(model.align_corners))
        if model.out_channels == 1:
            self.metadata['mask_threshold'] = self.decode_head.threshold

    def check_head(self, head: nn.Module):
        """Raise an ExportError unless the graph predicts as the head does."""
        check_methods(head, BaseDecodeHead, 'predict', 'predict_by_feat')

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = self.neck(self.backbone(image))
        logits = self.logits(features, image.shape[-2:])
        if self.output_names == ('logits',):
            return (logits,)
        if logits.shape[1] > 1:
            return (logits.argmax(1),)
        return ((logits.sigmoid() > self.decode_head.threshold).squeeze(1).long(),)

    def logits(self, features: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
        """Return the logits of the decode head, resized to height and width."""
        return F.interpolate(
            self.decode_head(features),
            size,
            mode='bilinear',
            align_corners=self.decode_head.align_corners,
        )


class Mask2Former(Segmentor):
    """Return scores (B, classes, H, W), or labels (B, H, W), at the size of the image.

    Args:
        model: an `EncoderDecoder` of mmseg in mode 'whole' with a `Mask2FormerHead` and
            our pixel decoder.
        output: 'logits' for the scores, which mmseg calls logits, or 'labels'.

    Raises:
        ExportError: another pixel decoder, or the model slides a window.
        ValueError: another `output`.
    """

    def check_head(self, head: nn.Module):
        """Raise an ExportError for another pixel decoder."""
        if type(head.pixel_decoder) is not Mask2FormerPixelDecoder:
            raise ExportError(
                f'the pixel decoder {type(head.pixel_decoder).__name__} cannot be '
                'exported; mmattn.Mask2FormerPixelDecoder takes its settings and '
                'weights'
            )

    def logits(self, features: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
        """Return the scores of the classes that the queries vote for."""
        logits, masks = self.decode_head(features, None)
        masks = F.interpolate(masks[-1], size, mode='bilinear').sigmoid()
        classes = logits[-1].softmax(-1)[..., :-1]
        return torch.einsum('bqk,bqhw->bkhw', classes, masks)
