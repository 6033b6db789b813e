"""Detectors. They require mmdet, so `mmattn.models` imports them on demand."""

from .deformable_detr import DeformableDETR

__all__ = ['DeformableDETR']
