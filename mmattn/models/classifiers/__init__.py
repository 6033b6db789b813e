"""Classifiers. They require mmpretrain, so `mmattn.models` imports them on demand."""

from .distilled import DistilledClassifier

__all__ = ['DistilledClassifier']
