"""Detectors. They need mmdet, so `mmattn.models` imports them only on demand."""

from .deformable_detr import DeformableDETR

__all__ = ['DeformableDETR']
