"""Resize images like mmcv, without mmcv, and show images of any channels."""

import numpy as np
from PIL import Image

from mmattn.errors import UserError, import_optional

CV2 = ('nearest', 'bilinear', 'bicubic')
PILLOW = ('nearest', 'bilinear', 'bicubic', 'box', 'hamming', 'lanczos')
INTERPOLATIONS = dict(cv2=CV2, pillow=PILLOW, torch=('bilinear',))


def shown(image: np.ndarray) -> np.ndarray:
    """Return an image of any channels as RGB uint8, to look at.

    uint8 RGB images are returned unchanged. Otherwise the first three channels are red,
    green and blue, each stretched between its 0.5th and 99.5th percentile; an image of
    one or two is gray.
    """
    if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return image
    image = image.reshape(*image.shape[:2], -1)
    image = image[:, :, [0, 1, 2] if image.shape[2] > 2 else [0, 0, 0]]
    low, high = np.nanpercentile(image, (0.5, 99.5), axis=(0, 1))
    scaled = (image - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    return np.rint(255 * np.nan_to_num(scaled).clip(0, 1)).astype(np.uint8)


def check_interpolation(interpolation: str, backend: str):
    """Raise a ValueError for an interpolation that `resize` does not have."""
    if interpolation not in INTERPOLATIONS.get(backend, ()):
        raise UserError(
            f'interpolations must be of {INTERPOLATIONS}, got {interpolation!r} of '
            f'{backend!r}'
        )


def resize(
    image: np.ndarray,
    size: tuple[int, int],
    interpolation: str = 'bilinear',
    backend: str = 'cv2',
) -> np.ndarray:
    """Return an image of another size, as `mmcv.imresize` does.

    Args:
        image: shape (H, W, 3), uint8.
        size: new width and height.
        interpolation: its name in mmcv.
        backend: 'cv2', which does not smooth, or 'pillow', which does. 'torch' returns
            float32, as `torch.nn.functional.interpolate` does.
    """
    check_interpolation(interpolation, backend)
    if backend == 'pillow':
        method = Image.Resampling[interpolation.upper()]
        return np.asarray(Image.fromarray(image).resize(size, method))
    message = 'images are resized by OpenCV: pip install opencv-python-headless'
    cv2 = import_optional(message, 'cv2')
    if backend == 'torch':
        image = image.astype(np.float32)
    methods = cv2.INTER_NEAREST, cv2.INTER_LINEAR, cv2.INTER_CUBIC
    method = dict(zip(CV2, methods, strict=True))[interpolation]
    return cv2.resize(image, size, interpolation=method)


def nearest(old: int, new: int) -> np.ndarray:
    """Return the index of the old pixel that each new one copies."""
    return np.minimum((np.arange(new) * (1 / (new / old))).astype(int), old - 1)
