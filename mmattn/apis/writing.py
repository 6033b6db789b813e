"""Write predictions into a folder: pictures, videos, label maps and JSON."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmattn.errors import UserError

from ..files.atomic import write_atomically
from ..images import WindowedImage
from ..results import SCORE, Classification, CocoDocument, Detections, Segmentation
from .predictor import Predictor
from .sources import VIDEOS, expand, video_facts

FILE = 'predictions.json'
LINES = 'predictions.jsonl'  # until all images are predicted
TOP = 5  # classes that are written of a classification
FPS = 25.0  # of videos whose file does not say
CODEC = 'mp4v'
LOGGER = logging.getLogger('mmattn')


def write_predictions(
    predictor: Predictor,
    images: Sequence[Any],
    out: Path,
    *,
    score: float = SCORE,
    draw: bool = True,
    **options,
) -> str:
    """Predict images and write the results; return a line about what was written.

    The results of each image are written before the next one is predicted. After an
    interrupted call, they are in `predictions.jsonl`, a line for each image with its
    `image` and `annotations`, or its `file_name` and `classes`.

    Args:
        predictor: the model.
        images: see `Predictor.__call__`.
        out: folder. It gets `predictions.json`, `drawn/` with pictures and videos, and
            for segmentation `labels/` with a PNG file of labels for each image.
        score: objects with a lower score are left out.
        draw: whether to write `drawn/`.
        **options: see `Predictor.stream`.

    Raises:
        OSError: a file cannot be written. A `predictions.json` of an earlier call stays
            whole.
        ValueError: none of the images could be read, or pictures would replace files
            that are read or that no call wrote.
    """
    images, _ = expand(images)
    folders = [out / 'drawn'] if draw else []
    if predictor.task == 'segmentation':
        folders.append(out / 'labels')
    _check_folders(folders, images, out)
    out.mkdir(parents=True, exist_ok=True)
    names, objects, count = _Names(), 0, 0
    document = CocoDocument(predictor.classes)
    try:
        with ExitStack() as stack:
            lines = stack.enter_context((out / LINES).open('w', encoding='utf-8'))
            videos = _Videos(out / 'drawn', stack)
            for image, result in predictor.stream(images, score=score, **options):
                objects += len(result) if isinstance(result, Detections) else 0
                video, _, frame = (result.source or '').rpartition('#')
                is_frame = frame.isdigit() and Path(video).suffix.lower() in VIDEOS
                name = names.free(result.source, is_frame and f'_{int(frame):06d}')
                if isinstance(result, Segmentation):
                    _save(result.labels, out / 'labels' / f'{name}.png')
                if draw and is_frame:
                    videos.write(Path(video), result.draw(image))
                elif draw and isinstance(image, WindowedImage):
                    LOGGER.warning('%s is too large to be drawn', result.source)
                elif draw:
                    _save(result.draw(image), out / 'drawn' / f'{name}.png')
                lines.write(json.dumps(_line(result, document)) + '\n')
                lines.flush()
                count += 1
    except BaseException:
        if count:
            LOGGER.warning(
                'stopped; the results of the first %d images are in %s',
                count,
                out / LINES,
            )
        raise
    if not count:
        (out / LINES).unlink()
        raise UserError('none of the images could be read')
    is_list = predictor.task == 'classification'
    parts = _parts(out / LINES) if is_list else _coco_parts(out / LINES, document)
    write_atomically(out / FILE, parts)
    (out / LINES).unlink()
    what = {
        'detection': f'{objects} objects with a score of at least {score} in ',
        'segmentation': 'label maps of ',
        'classification': 'classes of ',
    }[predictor.task]
    return f'{what}{count} images: {out / FILE}' + (
        f', {out / "drawn"}' if draw else ''
    )


def _line(result, document: CocoDocument) -> dict:
    """Return what `predictions.jsonl` gets of an image."""
    if isinstance(result, Classification):
        best = [dict(name=n, score=round(s, 6)) for n, s in result.top(TOP)]
        return dict(file_name=result.source, classes=best)
    image, annotations = document.entries(result)
    return dict(image=image, annotations=annotations)


def _coco_parts(lines: Path, document: CocoDocument) -> Iterator[bytes]:
    """Yield a document of COCO from the lines, without holding all of them."""
    yield b'{"images": '
    yield from _parts(lines, lambda line: [line['image']])
    yield b', "annotations": '
    yield from _parts(lines, lambda line: line['annotations'])
    yield f', "categories": {json.dumps(document.categories())}}}'.encode()


def _parts(lines: Path, items: Callable = lambda line: [line]) -> Iterator[bytes]:
    """Yield a JSON list of the items of all lines."""
    comma = b'['
    with lines.open(encoding='utf-8') as file:
        for line in file:
            for item in items(json.loads(line)):
                yield comma + json.dumps(item).encode()
                comma = b', '
    yield b']' if comma == b', ' else b'[]'


def _check_folders(folders: Sequence[Path], items: Sequence[Any], out: Path):
    """Check that results can go to `folders` without replacing other files."""
    read = {item.resolve().parent for item in items if isinstance(item, Path)}
    is_ours = (out / FILE).exists() or (out / LINES).exists()
    for folder in folders:
        if folder.resolve() in read:
            reason = 'images are read from there'
        elif folder.exists() and any(folder.iterdir()) and not is_ours:
            reason = f'it has files, but {out} has no {FILE} of an earlier call'
        else:
            continue
        raise UserError(
            f'results would go to {folder}, but {reason}; choose another folder for '
            f'the results (--out), got {out}'
        )


def _save(pixels: np.ndarray, path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


class _Names:
    """Give each image a file name of its own."""

    def __init__(self):
        self.used = set()

    def free(self, source: str | None, suffix: str | bool = '') -> str:
        stem = Path((source or 'image').rpartition('#')[0] or source or 'image').stem
        name = stem = f'{stem}{suffix or ""}'
        number = 1
        while name.casefold() in self.used:  # one file on Windows and macOS
            number += 1
            name = f'{stem}_{number}'
        self.used.add(name.casefold())
        return name


class _Videos:
    """Write frames into a video for each video that they come from."""

    def __init__(self, folder: Path, stack: ExitStack):
        self.folder, self.stack, self.writers = folder, stack, {}
        self.names = _Names()

    def write(self, source: Path, frame: np.ndarray):
        if source not in self.writers:
            import cv2

            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f'{self.names.free(str(source))}.mp4'
            rate = video_facts(source)[1] or FPS
            codec = cv2.VideoWriter_fourcc(*CODEC)
            size = frame.shape[1::-1]
            writer = cv2.VideoWriter(str(path), codec, rate, size)
            if not writer.isOpened():
                raise OSError(f'OpenCV cannot write the video {path}')
            self.stack.callback(writer.release)
            self.writers[source] = writer
        self.writers[source].write(np.ascontiguousarray(frame[:, :, ::-1]))
