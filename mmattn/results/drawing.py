"""Draw results on images."""

import colorsys
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmattn.errors import UserError

from ..images import read_image, shown
from .optional import import_supervision

MAX_TEXTS = 30  # objects that are named by default
MAX_COVER = 0.5  # area of their names and scores, as a share of that of their boxes
MASK_OPACITY = 0.4
TEXT_PADDING = 6  # pixels of a text of scale 1
MIN_SCALE = 0.35  # of a text that can be read
GOLDEN = 0.618033988749895  # successive hues are far apart
TEXT_SHARE = 1 / 40  # of the image's shorter side
MIN_TEXT = 10  # pixels
MAX_LEGEND = 0.25  # share of the picture that a legend of objects covers
GROUND, GROUND_OPACITY = (20, 20, 20), 0.75  # of a legend


def open_picture(
    image: np.ndarray | Image.Image | None, source: str | None
) -> np.ndarray:
    """Return the image to draw on as an RGB array.

    Raises:
        ValueError: there is no image, and `source` is no file.
    """
    if image is None:
        if source is None or not Path(source).is_file():
            raise UserError(
                f'draw() requires the image of this result, whose source is {source!r}:'
                ' pass it as `image`'
            )
        image = source
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 4:
        return read_image(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 2:
        return read_image(image)
    if isinstance(image, np.ndarray):
        return shown(image)
    return read_image(image)


def class_colors(count: int) -> list[list[int]]:
    """Return a distinct RGB color for each label."""
    hues = (i * GOLDEN % 1 for i in range(count))
    colors = (colorsys.hsv_to_rgb(hue, 0.75, 0.95) for hue in hues)
    return [[round(255 * channel) for channel in color] for color in colors]


def draw_detections(
    picture: np.ndarray,
    found,
    with_text: bool | None = None,
    *,
    with_boxes: bool = True,
    with_masks: bool = True,
) -> np.ndarray:
    """Return a picture with objects.

    Args:
        picture: shape (H, W, 3), RGB uint8.
        found: `Detections`.
        with_text: see `Detections.draw`.
        with_boxes: see `Detections.draw`.
        with_masks: see `Detections.draw`.
    """
    sv = import_supervision()
    if found.masks is not None and found.masks.shape[1:] != picture.shape[:2]:
        raise UserError(
            'the image must be the original one, of height and width '
            f'{found.masks.shape[1:]}, got {picture.shape[:2]}'
        )
    objects = found.to_supervision()
    by_class = len(found.classes or set(found.names)) > 1  # else objects differ
    most = int(found.labels.max(initial=0)) + 1 if by_class else len(found)
    palette = class_colors(max(most, 1))
    colors = dict(
        color=sv.ColorPalette([sv.Color(*color) for color in palette]),
        color_lookup=sv.ColorLookup.CLASS if by_class else sv.ColorLookup.INDEX,
    )
    scene = Image.fromarray(picture)  # of an array, supervision expects BGR
    size = picture.shape[1::-1]
    thickness = sv.calculate_optimal_line_thickness(resolution_wh=size)
    if with_masks and found.masks is not None:
        scene = sv.MaskAnnotator(opacity=MASK_OPACITY, **colors).annotate(
            scene, objects
        )
    if with_boxes:
        scene = sv.BoxAnnotator(thickness=thickness, **colors).annotate(scene, objects)
    texts = [
        f'{name} {score:.2f}'
        for name, score in zip(found.names, found.scores, strict=True)
    ]
    scale = max(sv.calculate_optimal_text_scale(resolution_wh=size), MIN_SCALE)
    padding = round(TEXT_PADDING * scale)
    legend = []
    if with_text or (
        with_text is None and _leave_objects_visible(texts, found.boxes, scale, padding)
    ):
        write = sv.LabelAnnotator(
            text_scale=scale,
            text_padding=padding,
            smart_position=True,  # inside the image, beside each other
            **colors,
        )
        scene = write.annotate(scene, objects, texts)
    elif with_text is None:
        legend = [
            (f'{found.name_of(label)}: {count}', palette[label] if by_class else None)
            for label, count in Counter(found.labels.tolist()).most_common()
        ]
    return _write(scene, legend, MAX_LEGEND)


def _leave_objects_visible(
    texts: Sequence[str], boxes: np.ndarray, scale: float, padding: int
) -> bool:
    """Return whether the texts are few, and small beside the boxes."""
    import cv2  # comes with supervision

    if len(texts) > MAX_TEXTS:
        return False
    written = 0
    for text in texts:
        (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
        written += (width + 2 * padding) * (height + 2 * padding)
    return written <= MAX_COVER * (boxes[:, 2:] - boxes[:, :2]).prod(1).sum()


def draw_labels(
    picture: np.ndarray,
    colors: np.ndarray,
    opacity: float,
    legend: Sequence[tuple[str, Sequence[int]]],
) -> np.ndarray:
    """Return a picture under colors, with a legend in the upper left corner.

    Args:
        picture: shape (H, W, 3), RGB uint8.
        colors: the same shape and type.
        opacity: of the colors, from 0 to 1.
        legend: name and color of each class.
    """
    if colors.shape != picture.shape:
        raise UserError(
            'the image must be the original one, of height and width '
            f'{colors.shape[:2]}, got {picture.shape[:2]}'
        )
    if not 0 <= opacity <= 1:
        raise UserError(f'`opacity` must be from 0 to 1, got {opacity}')
    blend = Image.blend(Image.fromarray(picture), Image.fromarray(colors), opacity)
    return _write(blend, legend)


def draw_lines(picture: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """Return a picture with lines of text in the upper left corner."""
    return _write(Image.fromarray(picture), [(line, None) for line in lines])


def _write(
    canvas: Image.Image,
    entries: Sequence[tuple[str, Sequence[int] | None]],
    max_share: float = math.inf,
) -> np.ndarray:
    """Write lines on a dark ground, each behind a square of its color if it has one.

    Args:
        canvas: the picture.
        entries: text and color of each line. Lines that the picture is too low for are
            counted in the last one.
        max_share: nothing is written if the ground covers more of the picture.
    """
    if not entries:
        return np.array(canvas)
    size = max(MIN_TEXT, round(min(canvas.size) * TEXT_SHARE))
    font, gap = ImageFont.load_default(size), size // 3
    lines = max(2, (canvas.height - gap) // (size + gap))
    if len(entries) > lines:
        rest = len(entries) - lines + 1
        entries = [*entries[: lines - 1], (f'{rest} more', None)]
    squares = any(color is not None for _, color in entries)
    left = 2 * gap + size if squares else gap
    width = left + max(int(font.getlength(text)) for text, _ in entries) + gap
    height = len(entries) * (size + gap) + gap
    if width * height > max_share * canvas.width * canvas.height:
        return np.array(canvas)
    canvas = canvas.convert('RGB')
    below = canvas.crop((0, 0, width, height))
    ground = Image.blend(below, Image.new('RGB', below.size, GROUND), GROUND_OPACITY)
    draw = ImageDraw.Draw(ground)
    for i, (text, color) in enumerate(entries):
        top = gap + i * (size + gap)
        if color is not None:
            box = (gap, top, gap + size, top + size)
            draw.rectangle(box, fill=tuple(map(int, color)))
        draw.text((left, top), text, (255, 255, 255), font)
    canvas.paste(ground, (0, 0))
    return np.array(canvas)
