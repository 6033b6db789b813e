"""Classifiers. `DistilledClassifier` requires mmpretrain and is imported on demand."""

from .pooled import PooledClassifier

__all__ = ['DistilledClassifier', 'PooledClassifier']


def __getattr__(name: str):
    if name == 'DistilledClassifier':
        from .distilled import DistilledClassifier

        return DistilledClassifier
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
