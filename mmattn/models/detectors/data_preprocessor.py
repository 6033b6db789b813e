"""Prepare batches of images of any number of channels for detectors."""

from mmdet.models import DetDataPreprocessor as MMDetDataPreprocessor

from mmattn.registry import MODELS

from ..layers.many_channels import ManyChannels


@MODELS.register_module()
class DetDataPreprocessor(ManyChannels, MMDetDataPreprocessor):
    """Prepare batches as mmdet's does, with any number of channels."""
