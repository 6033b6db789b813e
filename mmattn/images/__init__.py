"""Images: read within limits, and resized."""

from .guard import MAX_MEGAPIXELS, NoImageError
from .read import header_size, read_channels, read_image, read_labels, tiff_size
from .resize import check_interpolation, nearest, resize, shown
from .tiling import tile_boxes
from .windows import WindowedImage

__all__ = [
    'MAX_MEGAPIXELS',
    'NoImageError',
    'WindowedImage',
    'check_interpolation',
    'header_size',
    'nearest',
    'read_channels',
    'read_image',
    'read_labels',
    'resize',
    'shown',
    'tile_boxes',
    'tiff_size',
]
