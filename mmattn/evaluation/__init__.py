"""Data sets and metrics that configs name with the prefix `mmattn.`.

Data sets and metrics of ImageNet-1k require mmpretrain, `CocoMetric` requires mmdet. A
class is imported when it is asked for.
"""

from importlib import import_module

from .labels import LabelConfusion
from .real_accuracy import ReaLAccuracy

__all__ = ['CocoMetric', 'ImageNetV2', 'LabelConfusion', 'ReaLAccuracy']
HOMES = {'CocoMetric': '.coco', 'ImageNetV2': '.imagenet_v2'}


def __getattr__(name: str):
    if name in HOMES:
        return getattr(import_module(HOMES[name], __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
