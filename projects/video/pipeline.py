"""Transforms of clips: open, decode, augment with torchvision, normalize, pack."""

from collections.abc import Sequence

import torch
import torchvision.transforms.v2 as torchvision_transforms
from mmengine.registry import TRANSFORMS

from mmattn.errors import UserError

from .reader import VideoReader


@TRANSFORMS.register_module()
class OpenVideo:
    """Open `video_path`, and add `reader` and `total_frames`."""

    def __call__(self, results: dict) -> dict:
        results['reader'] = VideoReader(results['video_path'])
        results['total_frames'] = len(results['reader'])
        return results


@TRANSFORMS.register_module()
class DecodeVideo:
    """Replace `reader` by `clips`, the frames that `frame_indices` (V, T) name.

    `clips` is RGB, uint8, shape (V, T, 3, H, W), with V views of the video.
    """

    def __call__(self, results: dict) -> dict:
        indices = results['frame_indices']
        frames = results.pop('reader').frames(indices.ravel().tolist())
        clips = torch.from_numpy(frames).permute(0, 3, 1, 2)
        results['clips'] = clips.unflatten(0, indices.shape)
        return results


@TRANSFORMS.register_module()
class Torchvision:
    """Apply transforms of `torchvision.transforms.v2` to `clips`.

    All frames of a view are transformed alike. Random transforms draw anew for each
    view.

    Args:
        transforms: configs, such as `dict(type='RandomCrop', size=224)`.

    Raises:
        ValueError: torchvision has no transform of that name.
    """

    def __init__(self, transforms: Sequence[dict]):
        self.transform = torchvision_transforms.Compose(
            [_build_transform(dict(transform)) for transform in transforms]
        )

    def __call__(self, results: dict) -> dict:
        results['clips'] = torch.stack([self.transform(v) for v in results['clips']])
        return results


def _build_transform(cfg: dict):
    name = cfg.pop('type')
    transform = getattr(torchvision_transforms, name, None)
    if transform is None:
        raise UserError(
            f'torchvision.transforms.v2 has no transform {name!r}; its documentation '
            'lists the names'
        )
    return transform(**cfg)


@TRANSFORMS.register_module()
class NormalizeClips:
    """Subtract the mean of each channel of `clips` and divide by the deviation.

    Args:
        mean, std: of R, G and B in [0, 255].
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        self.mean, self.std = (torch.tensor(x).view(3, 1, 1) for x in (mean, std))

    def __call__(self, results: dict) -> dict:
        results['clips'] = (results['clips'].float() - self.mean) / self.std
        return results


@TRANSFORMS.register_module()
class PackClips:
    """Keep what a `VideoClassifier` takes.

    These are `inputs`, shape (V, 3, T, H, W), and `labels`.
    """

    def __call__(self, results: dict) -> dict:
        clips = results['clips'].transpose(1, 2).contiguous()
        return dict(inputs=clips, labels=results['gt_label'])
