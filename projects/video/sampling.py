"""Choose the frames of a video that make up its clips."""

import numpy as np
from mmengine.registry import TRANSFORMS

from mmattn.errors import UserError


def dense_clips(
    total: int, clip_len: int, interval: int, num_clips: int, rng=None
) -> np.ndarray:
    """Return windows of frames at a fixed interval.

    From Wang et al., "Non-local Neural Networks", https://arxiv.org/abs/1711.07971,
    which trains on consecutive frames and tests on clips spread over the video.

    Args:
        total: frames of the video.
        clip_len: frames of a clip.
        interval: frames of the video from one frame of a clip to the next.
        num_clips: clips.
        rng: generator that draws the starts, uniformly. Without it, the first clip
            starts with the video and the last one ends with it; a single clip lies in
            the middle.

    Returns:
        Indices, shape (num_clips, clip_len). A video that is shorter than a clip is
        continued by its last frame.
    """
    latest = max(0, total - (clip_len - 1) * interval - 1)
    if rng is not None:
        starts = rng.integers(latest + 1, size=num_clips)
    elif num_clips == 1:
        starts = np.array([latest // 2])
    else:
        starts = np.linspace(0, latest, num_clips).round().astype(int)
    indices = starts[:, None] + interval * np.arange(clip_len)
    return indices.clip(max=total - 1)


def uniform_clips(total: int, clip_len: int, num_clips: int, rng=None) -> np.ndarray:
    """Return one frame of each of `clip_len` equal segments of the video.

    From Wang et al., "Temporal Segment Networks", https://arxiv.org/abs/1608.00859.

    Args:
        total: frames of the video.
        clip_len: frames of a clip.
        num_clips: clips.
        rng: generator that draws a frame of each segment. Without it, clip i of n takes
            the frames at (i + 1/2) / n of each segment: its middle for a single clip.

    Returns:
        Indices, shape (num_clips, clip_len). A video with fewer frames than `clip_len`
        repeats some.
    """
    if rng is not None:
        places = rng.random((num_clips, clip_len))
    else:
        places = (np.arange(num_clips)[:, None] + 0.5) / num_clips
    segments = (np.arange(clip_len) + places) / clip_len  # in [0, 1)
    return (segments * total).astype(int).clip(max=total - 1)


class _Sampling:
    """Add `frame_indices` (num_clips, clip_len) to a sample that has `total_frames`."""

    def __init__(self, clip_len: int, num_clips: int, training: bool):
        for name, value in (('clip_len', clip_len), ('num_clips', num_clips)):
            if value < 1:
                raise UserError(f'`{name}` must be 1 or more, got {value}')
        self.clip_len, self.num_clips, self.training = clip_len, num_clips, training

    def __call__(self, results: dict) -> dict:
        # mmengine seeds NumPy's global generator in each worker and each epoch.
        seed = np.random.randint(2**31) if self.training else None
        rng = np.random.default_rng(seed) if self.training else None
        results['frame_indices'] = self.sample(results['total_frames'], rng)
        return results

    def sample(self, total: int, rng) -> np.ndarray:
        raise NotImplementedError


@TRANSFORMS.register_module()
class SampleDense(_Sampling):
    """Sample windows of frames at a fixed interval, see `dense_clips`.

    Args:
        clip_len: frames T of a clip.
        interval: frames of the video from one frame of a clip to the next.
        num_clips: clips, the views of a test.
        training: draw the starts.
    """

    def __init__(
        self,
        clip_len: int,
        interval: int = 1,
        num_clips: int = 1,
        *,
        training: bool = False,
    ):
        super().__init__(clip_len, num_clips, training)
        if interval < 1:
            raise UserError(f'`interval` must be 1 or more, got {interval}')
        self.interval = interval

    def sample(self, total, rng):
        return dense_clips(total, self.clip_len, self.interval, self.num_clips, rng)


@TRANSFORMS.register_module()
class SampleUniform(_Sampling):
    """Sample one frame of each of T equal segments, see `uniform_clips`.

    Args:
        clip_len: frames T of a clip.
        num_clips: clips, the views of a test.
        training: draw the frames.
    """

    def __init__(self, clip_len: int, num_clips: int = 1, *, training: bool = False):
        super().__init__(clip_len, num_clips, training)

    def sample(self, total, rng):
        return uniform_clips(total, self.clip_len, self.num_clips, rng)
