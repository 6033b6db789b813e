"""Prepare batches of images of any number of channels for segmentors."""

from mmseg.models import SegDataPreProcessor as MMSegDataPreProcessor

from mmattn.registry import MODELS

from .layers.many_channels import ManyChannels


@MODELS.register_module()
class SegDataPreProcessor(ManyChannels, MMSegDataPreProcessor):
    """Prepare batches as mmseg's does, with any number of channels."""
