"""Images: read and resized."""

from .read import (
    FORMATS,
    NoImageError,
    check_interpolation,
    nearest,
    read_channels,
    read_image,
    resize,
    shown,
)

__all__ = [
    'FORMATS',
    'NoImageError',
    'check_interpolation',
    'nearest',
    'read_channels',
    'read_image',
    'resize',
    'shown',
]
