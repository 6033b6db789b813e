"""Clips of pedestrians at three playback speeds, `data/playback_speed`.

OpenCV's documentation brings `vtest.avi`, 795 frames in which people cross a square
before a fixed camera. At times a few frames apart, the tool takes the places where most
moves and writes each as three clips of 8 frames: consecutive frames (class 0), every
second (class 1) and every fourth (class 2). The three clips show the same place around
the same time and share their middle frame, so single frames hardly tell the class.
Benaim et al., "SpeedNet", https://arxiv.org/abs/2004.06130, train on this task.

The split is in time: clips for training come from the first 520 frames, clips for
validation from the last 215. Frames are reduced to half their size, and clips are
stored without loss. The video's encoder repeats blocks that hardly change, so fewer
pixels change in slow clips even where nothing moves. Noise in the frames hides it. The
layout follows Kinetics-400: videos, and `{train,val}.txt` with a path and a class on
each line.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from tqdm import tqdm

from mmattn.cli.terminal import run_main
from tools.datasets.package_data import Package, main_of, read_deb

PACKAGE = Package(
    name='opencv',
    version='4.6.0+dfsg-12',
    filename='opencv-doc_4.6.0+dfsg-12_all.deb',
    sha256='4b12681df35878207ac7097dc66184b2ae552e4bf4ddd2af04a0f03ed0b8682a',
    license='Apache-2.0',
    md5='484deaae4b64fbc01900e818058bd559',
)
MEMBER = 'usr/share/doc/opencv-doc/examples/data/vtest.avi'
DATA = Path('data/playback_speed')
SPEEDS = (1, 2, 4)  # frames of the video for a frame of a clip, by class
CLIP_LEN = 8
# Frames, frames between the times of clips, and side of the clips, in pixels of the
# reduced frames. Training crops a side of 64.
SPLITS = {'train': (range(520), 8, 80), 'val': (range(580, 795), 8, 64)}
PLACES = 6  # at most, at a time
LEAST_CHANGE = 3.0  # mean change of a place, in levels of gray
NOISE = 4.0  # standard deviation, in levels of gray


def read_video(path: Path) -> np.ndarray:
    """Return the RGB frames (T, H, W, 3), uint8, at half their size."""
    with av.open(str(path)) as container:
        return np.stack(
            [
                cv2.resize(
                    frame.to_ndarray(format='rgb24'),
                    None,
                    fx=0.5,
                    fy=0.5,
                    interpolation=cv2.INTER_AREA,
                )
                for frame in container.decode(video=0)
            ]
        )


def add_noise(frames: np.ndarray, deviation: float = NOISE) -> np.ndarray:
    """Return frames (T, H, W, 3), uint8, with normal noise, the same in each call."""
    rng = np.random.default_rng(0)
    noisy = np.empty_like(frames)
    for out, frame in zip(noisy, frames, strict=True):
        noise = rng.normal(0, deviation, frame.shape)
        out[:] = np.clip(np.rint(frame + noise), 0, 255)
    return noisy


def write_video(path: Path, frames: Sequence[np.ndarray], rate: int = 10):
    """Write RGB frames (H, W, 3), uint8, without loss."""
    with av.open(str(path), 'w') as container:
        stream = container.add_stream('ffv1', rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = 'bgr0'
        stream.codec_context.time_base = Fraction(1, rate)
        for frame in frames:
            video_frame = av.VideoFrame.from_ndarray(frame, format='rgb24')
            container.mux(stream.encode(video_frame))
        container.mux(stream.encode())


def clip_times(time: int, speed: int) -> list[int]:
    """Return the frames of the clip whose middle frame is `time`, at any speed."""
    return [time + speed * (step - CLIP_LEN // 2) for step in range(CLIP_LEN)]


def moving_places(
    before: np.ndarray, after: np.ndarray, side: int
) -> Iterator[tuple[int, int]]:
    """Yield the corners (y, x) of the squares that change most, the largest first.

    Squares overlap by less than half their side in one direction at least.

    Args:
        before, after: frames (H, W, 3), uint8.
        side: side of the squares.
    """
    change = np.abs(after.astype(np.float32) - before).mean(2)
    means = cv2.blur(change, (side, side), anchor=(0, 0))
    means = means[: len(change) - side + 1, : change.shape[1] - side + 1]
    for _ in range(PLACES):
        y, x = np.unravel_index(means.argmax(), means.shape)
        if means[y, x] < LEAST_CHANGE:
            return
        yield int(y), int(x)
        reach = side // 2
        means[max(0, y - reach) : y + reach, max(0, x - reach) : x + reach] = 0


def convert_frames(
    frames: np.ndarray, folder: Path, splits: Mapping[str, tuple] = SPLITS
) -> dict:
    """Write the clips of a video into `folder`.

    Args:
        frames: RGB, uint8, shape (T, H, W, 3), without noise.
        folder: gets `{train,val}/*.mkv` and `{train,val}.txt`.
        splits: as `SPLITS`.

    Returns:
        The number of clips of each split.
    """
    counts, noisy = {}, add_noise(frames)
    for split, (times, step, side) in splits.items():
        (folder / split).mkdir(parents=True)
        first, *_, last = clip_times(0, max(SPEEDS))
        middles = range(times[0] - first, times[-1] - last + 1, step)
        rows = []
        for time in tqdm(middles, split):
            for y, x in moving_places(frames[time - 1], frames[time + 1], side):
                for label, speed in enumerate(SPEEDS):
                    clip = noisy[clip_times(time, speed), y : y + side, x : x + side]
                    path = f'{split}/t{time:03d}_y{y:03d}_x{x:03d}_{speed}x.mkv'
                    write_video(folder / path, clip)
                    rows.append(f'{path} {label}\n')
        (folder / f'{split}.txt').write_text(''.join(rows))
        counts[split] = len(rows)
    return counts


def convert(packages: list[Path], folder: Path) -> dict:
    (content,) = read_deb(packages[0], [MEMBER])
    with tempfile.NamedTemporaryFile(suffix='.avi') as file:
        file.write(content)
        file.flush()
        frames = read_video(Path(file.name))
    return convert_frames(frames, folder)


main = main_of(__doc__, 'playback_speed', (PACKAGE,), convert)


if __name__ == '__main__':
    run_main(main)
