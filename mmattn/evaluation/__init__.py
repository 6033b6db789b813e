"""Data sets and metrics for testing classifiers of ImageNet-1k; mmpretrain is required.

Configs name them with the prefix `mmattn.`; training does not need them.
"""

from .imagenet_v2 import ImageNetV2
from .real_accuracy import ReaLAccuracy

__all__ = ['ImageNetV2', 'ReaLAccuracy']
