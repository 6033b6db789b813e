"""Load images as prediction reads them, and images of any number of channels."""

import cv2
import numpy as np
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmengine.fileio import get_local_path

from mmattn.images import MAX_MEGAPIXELS, read_channels, read_image
from mmattn.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImage(BaseTransform):
    """Load an image by `mmattn.images.read_image`, as prediction does.

    Training with mmattn puts it in place of each `LoadImageFromFile` that reads colors
    by OpenCV or Pillow. The tools of other packages do that only if a config names it.
    It sets `img` of shape (H, W, 3) in BGR, `img_shape` and `ori_shape`.

    Args:
        to_float32: whether to convert the image to float32.
        ignore_empty: whether to skip a sample whose image cannot be read.
        max_megapixels: see `read_image`.
        backend_args: of mmengine's file backend, None for local files.
    """

    def __init__(
        self,
        to_float32: bool = False,
        ignore_empty: bool = False,
        max_megapixels: float = MAX_MEGAPIXELS,
        backend_args: dict | None = None,
    ):
        self.to_float32, self.ignore_empty = to_float32, ignore_empty
        self.max_megapixels, self.backend_args = max_megapixels, backend_args

    def transform(self, results: dict) -> dict | None:
        path = results['img_path']
        try:
            with get_local_path(path, backend_args=self.backend_args) as local:
                image = read_image(local, path, max_megapixels=self.max_megapixels)
        except (OSError, ValueError):
            if self.ignore_empty:
                return None
            raise
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results


def with_our_reader(transform):
    """Return `LoadImage` in place of mmcv's loader of color images, or the transform.

    A loader that reads by turbojpeg or tifffile, or other colors, stays.
    """
    if (
        type(transform) is not LoadImageFromFile
        or transform.color_type != 'color'
        or transform.imdecode_backend not in ('cv2', 'pillow')
        or transform.file_client_args is not None
    ):
        return transform
    names = ('to_float32', 'ignore_empty', 'backend_args')
    return LoadImage(**{name: getattr(transform, name) for name in names})


@TRANSFORMS.register_module()
class LoadChannels(BaseTransform):
    """Load a TIFF file as it is, in place of `LoadImageFromFile`.

    It sets `img` of shape (H, W, channels), `img_shape` and `ori_shape`. Files may keep
    channels last or as planes, in 8 or 16 bits or as float32. `in_channels` of the
    backbone must equal `channels`, and `data_preprocessor` must not swap red and blue.

    Args:
        channels: of each image; another number is an error that names the file.
        backend_args: of mmengine's file backend, None for local files.
    """

    def __init__(self, channels: int, backend_args: dict | None = None):
        self.channels, self.backend_args = channels, backend_args

    def transform(self, results: dict) -> dict:
        path = results['img_path']
        with get_local_path(path, backend_args=self.backend_args) as local:
            results['img'] = read_channels(local, self.channels, path)
        results['img_shape'] = results['ori_shape'] = results['img'].shape[:2]
        return results
