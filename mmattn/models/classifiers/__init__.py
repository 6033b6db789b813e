"""Classifiers. They need mmpretrain, so `mmattn.models` imports them only on demand."""

from .distilled import DistilledClassifier

__all__ = ['DistilledClassifier']
