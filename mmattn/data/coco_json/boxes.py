"""Boxes of COCO annotations, compared with their images."""

from collections.abc import Callable

import numpy as np

from mmattn.errors import UserError

from .values import more, shown

SLACK = 1  # pixels by which a box may reach beyond its image without a note


def check_boxes(
    annotations: list[dict], sizes: np.ndarray, where: Callable[[int], str]
) -> dict[str, list[int]]:
    """Compare all boxes with their images.

    Args:
        annotations: with boxes of four finite numbers.
        sizes: height and width of each one's image, shape (N, 2).
        where: names an annotation by its position.

    Returns:
        Positions of unusual boxes, by what is unusual.

    Raises:
        ValueError: a box, or the form of all boxes, cannot be meant.
    """
    if not annotations:
        return {}
    boxes = np.array([entry['bbox'] for entry in annotations], np.float64)
    x, y, w, h = boxes.T
    height, width = sizes.T
    x2, y2 = x + w, y + h

    def text(position: int) -> str:
        rows, columns = sizes[position].tolist()
        return (
            f'{shown(annotations[position]["bbox"])} [x, y, width, height] in an image '
            f'of {rows} x {columns} pixels (height x width)'
        )

    for wrong, what in (
        ((w < 0) | (h < 0), 'has a negative width or height, the box'),
        (
            (x < -width) | (y < -height) | (x2 > 2 * width) | (y2 > 2 * height),
            'lies far outside its image, the box',
        ),
    ):
        if wrong.any():
            first = int(wrong.argmax())
            others = more(int(wrong.sum()) - 1)
            raise UserError(f'{where(first)}: {what} {text(first)}{others}')
    beyond = (x < -SLACK) | (y < -SLACK) | (x2 > width + SLACK) | (y2 > height + SLACK)
    first = int(beyond.argmax())
    inside = (w > x) & (h > y) & (w <= width + SLACK) & (h <= height + SLACK)
    if len(boxes) > 2 and inside.all() and 3 * beyond.sum() >= len(boxes):
        raise UserError(
            f'{where(first)}: {int(beyond.sum())} of {len(boxes)} boxes reach beyond '
            f'their images, and none would as [x1, y1, x2, y2], such as {text(first)}; '
            'write widths and heights'
        )
    if (boxes >= 0).all() and max(x2.max(), y2.max()) <= 1 < sizes.min():
        raise UserError(
            f'{where(0)}: all boxes lie in the first pixel of their images, such as '
            f'{text(0)}; write pixels, not fractions of the image'
        )
    outside = (x2 <= 0) | (y2 <= 0) | (x >= width) | (y >= height)
    kinds = {
        'reaches beyond its image, the box': beyond & ~outside,
        'lies outside its image, the box': outside,
        'is narrower than a pixel, the box': ((w < 1) | (h < 1)) & ~outside,
    }
    found = {}
    for what, chosen in kinds.items():
        positions = np.flatnonzero(chosen).tolist()
        if positions:
            found[f'{what} {text(positions[0])}'] = positions
    return found
