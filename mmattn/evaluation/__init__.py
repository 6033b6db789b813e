"""Data sets and metrics that configs name with the prefix `mmattn.`.

Data sets and metrics of ImageNet-1k require mmpretrain, `CocoMetric` requires mmdet. A
class is imported when it is asked for.
"""

from mmattn.on_demand import import_on_demand

from .labels import LabelConfusion
from .real_accuracy import ReaLAccuracy

__all__ = ['CocoMetric', 'ImageNetV2', 'LabelConfusion', 'ReaLAccuracy']
HOMES = {'CocoMetric': '.coco', 'ImageNetV2': '.imagenet_v2'}

__getattr__ = import_on_demand(__name__, HOMES)
