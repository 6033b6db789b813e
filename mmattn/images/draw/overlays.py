"""Draw objects, labels and lines of text on images."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmattn.errors import UserError, import_optional

from ..guard import TIFF_SUFFIXES, NoImageError
from ..read import read_channels, read_image, tiff_size
from ..resize import shown
from .style import BLACK, WHITE, line_width, text_color, text_height

MAX_TEXTS = 30  # objects that are named by default
MAX_COVER = 0.5  # area of their names and scores, as a share of their boxes' area
MASK_OPACITY = 0.4
TEXT_PADDING = 6  # pixels of a text of scale 1
MIN_SCALE = 0.35  # of a text that can be read
MAX_LEGEND = 0.25  # share of the picture that a legend of objects covers
GROUND, GROUND_OPACITY = (20, 20, 20), 0.75  # of a legend

Legend = Sequence[tuple[str, Sequence[int] | None]]


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
        return _read_picture(source)
    if not isinstance(image, np.ndarray):
        return read_image(image)
    is_rgba = image.ndim == 3 and image.shape[2] == 4
    if image.dtype == np.uint8 and (is_rgba or image.ndim == 2):
        return read_image(image)
    return shown(image)


def _read_picture(path: str) -> np.ndarray:
    """Return a file as an RGB array, also one of many channels."""
    try:
        return read_image(path)
    except NoImageError:
        if Path(path).suffix.lower() not in TIFF_SUFFIXES:
            raise
    return shown(read_channels(path, tiff_size(path, path)[2]))


def draw_objects(
    picture: np.ndarray,
    boxes: np.ndarray,
    masks: np.ndarray | None,
    colors: Sequence[Sequence[int]],
    texts: Sequence[str],
    legend: Legend,
    *,
    with_text: bool | None = None,
    with_boxes: bool = True,
    shown_at: float = 1.0,
) -> np.ndarray:
    """Return a picture with objects. This requires supervision.

    Args:
        picture: shape (H, W, 3), RGB uint8.
        boxes: shape (n, 4), x1, y1, x2, y2 in pixels.
        masks: shape (n, H, W), bool, or a `supervision.CompactMask`, or None.
        colors: RGB of each object.
        texts: text beside each object.
        legend: text and color of lines, which are written where the texts would hide
            the objects.
        with_text: whether to write `texts`. None writes them, or the legend.
        with_boxes: whether to draw the boxes.
        shown_at: factor by which the picture is shrunk before it is seen; lines are
            drawn wider.

    Raises:
        ValueError: the masks have another size than the picture.
        ImportError: supervision is not installed.
    """
    sv = import_supervision()
    if masks is not None and masks.shape[1:] != picture.shape[:2]:
        raise UserError(
            'the image must be the original one, of height and width '
            f'{masks.shape[1:]}, got {picture.shape[:2]}'
        )
    labels = np.arange(len(boxes))
    objects = sv.Detections(boxes.astype(np.float32), masks, class_id=labels)

    def palette(colors) -> dict:
        return sv.ColorPalette([sv.Color(*color) for color in colors or [(0, 0, 0)]])

    look = dict(color=palette(colors), color_lookup=sv.ColorLookup.INDEX)
    scene = Image.fromarray(picture)  # of an array, supervision expects BGR
    size = picture.shape[1::-1]
    if masks is not None:
        masked = sv.MaskAnnotator(opacity=MASK_OPACITY, **look)
        scene = masked.annotate(scene, objects)
    if with_boxes:
        framed = sv.BoxAnnotator(thickness=line_width(size, shown_at), **look)
        scene = framed.annotate(scene, objects)
    scale = max(sv.calculate_optimal_text_scale(resolution_wh=size), MIN_SCALE)
    padding = round(TEXT_PADDING * scale)
    if with_text is None:
        with_text = _leave_objects_visible(texts, boxes, scale, padding)
        legend = () if with_text else legend
    else:
        legend = ()
    if with_text:
        write = sv.LabelAnnotator(
            text_scale=scale,
            text_padding=padding,
            text_color=palette([text_color(color) for color in colors]),
            smart_position=True,  # inside the image, beside each other
            **look,
        )
        scene = write.annotate(scene, objects, list(texts))
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
    labels: np.ndarray,
    palette: Sequence[Sequence[int]],
    opacity: float,
    legend: Legend = (),
) -> np.ndarray:
    """Return a picture under colors, with a legend in the upper left corner.

    Args:
        picture: shape (H, W, 3), RGB uint8.
        labels: shape (H, W), integers. Where one has no color, the picture stays.
        palette: RGB of each label.
        opacity: of the colors, from 0 to 1.
        legend: name and color of each class.
    """
    if labels.shape != picture.shape[:2]:
        raise UserError(
            'the image must be the original one, of height and width '
            f'{labels.shape}, got {picture.shape[:2]}'
        )
    if not 0 <= opacity <= 1:
        raise UserError(f'`opacity` must be from 0 to 1, got {opacity}')
    known = labels < len(palette)
    colors = np.array(palette, np.uint8)[np.where(known, labels, 0)]
    colors[~known] = picture[~known]
    blend = Image.blend(Image.fromarray(picture), Image.fromarray(colors), opacity)
    return _write(blend, legend)


def draw_lines(picture: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """Return a picture with lines of text in the upper left corner."""
    return _write(Image.fromarray(picture), [(line, None) for line in lines])


def draw_cross(draw: ImageDraw.ImageDraw, place: Sequence[float], arm: float):
    """Draw a white cross with a black edge at a row and a column, in pixels."""
    y, x = place
    for color, more in ((BLACK, 1), (WHITE, 0)):
        for dy, dx in ((0, arm + more), (arm + more, 0)):
            line = (x - dx, y - dy, x + dx, y + dy)
            draw.line(line, fill=color, width=max(3, round(arm / 4)) + 2 * more)


def _write(
    canvas: Image.Image, entries: Legend, max_share: float = math.inf
) -> np.ndarray:
    """Write lines on a dark ground, each behind a square of its color if it has one.

    Args:
        canvas: the picture.
        entries: text and color of each line. They fill columns from left to right;
            what the picture is too small for is counted in the last one.
        max_share: nothing is written if the ground covers more of the picture.
    """
    if not entries:
        return np.array(canvas)
    size = text_height(canvas.size)
    font, gap = ImageFont.load_default(size), size // 3
    lines = max(2, (canvas.height - gap) // (size + gap))
    indent = gap + size if any(color is not None for _, color in entries) else 0

    def width_of(part) -> int:
        return indent + max(int(font.getlength(text)) for text, _ in part) + gap

    columns, width, written = [], gap, 0
    while written < len(entries):
        column = list(entries[written : written + lines])
        if columns and width + width_of(column) > canvas.width:
            rest = len(entries) - written + 1
            columns[-1][-1] = (f'{rest} more', None)
            break
        columns.append(column)
        width += width_of(column)
        written += lines
    height = len(columns[0]) * (size + gap) + gap
    if width * height > max_share * canvas.width * canvas.height:
        return np.array(canvas)
    canvas = canvas.convert('RGB')
    below = canvas.crop((0, 0, width, height))
    ground = Image.blend(below, Image.new('RGB', below.size, GROUND), GROUND_OPACITY)
    draw = ImageDraw.Draw(ground)
    left = gap
    for column in columns:
        for i, (text, color) in enumerate(column):
            top = gap + i * (size + gap)
            if color is not None:
                box = (left, top, left + size, top + size)
                draw.rectangle(box, fill=tuple(map(int, color)))
            draw.text((left + indent, top), text, WHITE, font)
        left += width_of(column)
    canvas.paste(ground, (0, 0))
    return np.array(canvas)


def import_supervision():
    """Return the module supervision.

    Raises:
        ImportError: it is not installed.
    """
    message = 'this requires supervision: pip install "mmattn[predict]"'
    return import_optional(message, 'supervision')
