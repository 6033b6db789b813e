"""Classifiers. `DistilledClassifier` requires mmpretrain and is imported on demand."""

from mmattn.on_demand import import_on_demand

from .pooled import PooledClassifier

__all__ = ['DistilledClassifier', 'PooledClassifier']

__getattr__ = import_on_demand(__name__, {'DistilledClassifier': '.distilled'})
