"""Load images of any number of channels."""

from mmcv.transforms import BaseTransform
from mmengine.fileio import get_local_path

from mmattn.images import read_channels
from mmattn.registry import TRANSFORMS


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
