"""Read single frames of a video file with PyAV, exactly and with clear errors."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np

from mmattn.errors import UserError

COMPLETE = 0.9  # share of the listed frames that a file must have


class VideoReader:
    """Frames of the first video stream of a file, by number.

    Opening reads the packets without decoding them, which gives the time of each frame.
    Reading then seeks to the key frame before the first wanted frame. Files that store
    no times of presentation, as AVI and raw streams, are decoded from their beginning.
    A cut file of a format that can be read as far as it goes, as Matroska, is a shorter
    video.

    Args:
        path: the file.

    Raises:
        ValueError: the file does not exist, is not a video, or lacks frames that its
            header lists.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise UserError(f'{self.path} does not exist')
        with self._opened() as (container, stream):
            packets = [packet for packet in container.demux(stream) if packet.size]
            times = sorted({p.pts for p in packets if p.pts is not None})
            listed, is_avi = stream.frames, container.format.name == 'avi'
        self._times = times if len(times) == len(packets) and not is_avi else None
        self._count = len(packets)
        # AVI files also list frames that were dropped.
        if not packets or self._count < COMPLETE * listed:
            raise UserError(
                f'{self.path} is damaged: it has {self._count} frames, and its header '
                f'lists {listed}'
            )

    def __len__(self) -> int:
        return self._count

    def frames(self, indices: Sequence[int]) -> np.ndarray:
        """Return frames in the order of `indices`, which may repeat and fall.

        Returns:
            RGB, uint8, shape (len(indices), H, W, 3).

        Raises:
            ValueError: an index is out of range, or a frame cannot be decoded.
        """
        wanted = sorted(set(indices))
        if not wanted:
            raise UserError(f'{self.path}: no frame was asked for')
        if wanted[0] < 0 or wanted[-1] >= self._count:
            outside = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise UserError(
                f'{self.path} has the frames 0 to {self._count - 1}, got {outside}'
            )
        found = self._decode(wanted, seek=self._times is not None)
        if len(found) < len(wanted) and self._times is not None:
            # A frame may need frames before the key frame that the seek ended at.
            found = self._decode(wanted, seek=False)
        missing = [index for index in wanted if index not in found]
        if missing:
            raise UserError(
                f'{self.path} is damaged: frame {missing[0]} of {self._count} cannot '
                'be decoded'
            )
        shapes = {frame.shape for frame in found.values()}
        if len(shapes) > 1:
            raise UserError(
                f'the frames of {self.path} must have one size, got {sorted(shapes)}'
            )
        return np.stack([found[index] for index in indices])

    def _decode(self, wanted: Sequence[int], *, seek: bool) -> dict[int, np.ndarray]:
        """Return the wanted frames that are whole, by number.

        Args:
            wanted: ascending numbers.
            seek: start at the key frame before the first one, not at the beginning.
        """
        found = {}
        with self._opened() as (container, stream):
            if seek:
                container.seek(self._times[wanted[0]], stream=stream)
            for index, frame in self._numbered(container.decode(stream)):
                if index in wanted and not frame.is_corrupt:
                    found[index] = frame.to_ndarray(format='rgb24')
                if index >= wanted[-1]:
                    break
        return found

    def _numbered(
        self, frames: Iterable[av.VideoFrame]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        if self._times is None:
            yield from enumerate(frames)
            return
        numbers = {time: number for number, time in enumerate(self._times)}
        for frame in frames:
            if frame.pts in numbers:
                yield numbers[frame.pts], frame

    @contextmanager
    def _opened(self):
        try:
            with av.open(str(self.path)) as container:
                if not container.streams.video:
                    raise UserError(f'{self.path} has no video stream')
                yield container, container.streams.video[0]
        except av.FFmpegError as error:
            raise UserError(
                f'{self.path} is damaged or not a video: {error.strerror}'
            ) from error
