"""Semantic scores or labels of Mask2Former."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.models.necks import Mask2FormerPixelDecoder

from ..errors import ExportError
from .segmentor import Segmentor


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
