"""Outlines of COCO annotations: polygons and run lengths."""

from collections import Counter
from collections.abc import Iterator
from math import dist

import numpy as np
from pycocotools import mask as coco_mask

from .values import NUMBERS, Fault, shown, span


def check_outline(entry: dict, size: tuple[int, int]) -> Iterator[str]:
    outline = entry['segmentation']
    if isinstance(outline, dict) and outline:
        if not _check_rle(outline, size) and not entry['iscrowd']:
            yield 'has a mask without a pixel'
        return
    if isinstance(outline, list) and NUMBERS.issuperset(map(type, outline)) and outline:
        yield 'has a polygon outside of a list of polygons'
        outline = entry['segmentation'] = [outline]
    if outline and not isinstance(outline, list):
        raise Fault(
            '"segmentation" must be a list of polygons or run lengths, got '
            f'{shown(outline)}'
        )
    limit, kept = max(size), []
    for part in outline or ():
        ends = span(part) if isinstance(part, list) else None
        if ends is None and part != []:
            raise Fault(
                '"segmentation" must have polygons [x, y, x, y, ...] in pixels, got '
                f'{shown(part)}'
            )
        if len(part) % 2:
            raise Fault(f'has a polygon of {len(part)} numbers, an x without its y')
        if ends and not -limit <= ends[0] <= ends[1] <= 2 * limit:
            raise Fault(
                f'has a polygon from {ends[0]} to {ends[1]}, far outside its image of '
                f'{size[0]} x {size[1]} pixels (height x width)'
            )
        if len(part) >= 6:
            kept.append(part)
        elif part:
            yield 'has a polygon of fewer than three points, which is left out'
    if outline:
        entry['segmentation'] = kept
    if not kept:
        del entry['segmentation']


def _check_rle(rle: dict, size: tuple[int, int]) -> int:
    """Check run lengths, which must have the size of their image; return their area.

    pycocotools decodes lengths that end early to whatever was in memory.

    Raises:
        Fault: they have another size, or are damaged.
    """
    given, counts = rle.get('size'), rle.get('counts')
    if not isinstance(given, list) or len(given) != 2 or not span(given):
        raise Fault(f'"segmentation" must have a "size" of two, got {shown(given)}')
    if tuple(given) != size:
        raise Fault(
            f'has a mask of {given[0]} x {given[1]} pixels (height x width), but its '
            f'image has {size[0]} x {size[1]}'
        )
    rle['size'] = list(size)  # whole numbers
    total = size[0] * size[1]
    if isinstance(counts, str):
        lengths = _run_lengths(counts)
    elif isinstance(counts, list) and {int}.issuperset(map(type, counts)):
        # A longer one than the image would overflow.
        lengths = np.array([min(count, total + 1) for count in counts] or [0])
    else:
        raise Fault(f'"counts" must be run lengths, got {shown(counts)}')
    if lengths.min() < 0 or lengths.sum() != total:
        raise Fault(
            f'has run lengths {shown(counts)}, which do not add up to the {total} '
            'pixels of its image'
        )
    return int(lengths[1::2].sum())


def _run_lengths(counts: str) -> np.ndarray:
    """Decode compressed run lengths: five bits a letter, as differences from the third.

    Raises:
        Fault: the text is none.
    """
    letters = np.frombuffer(counts.encode('ascii', 'replace'), np.uint8)
    letters = letters.astype(np.int64) - 48
    last = letters & 32 == 0
    if not letters.size or letters.min() < 0 or letters.max() > 63 or not last[-1]:
        raise Fault(f'has damaged run lengths {shown(counts)}')
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(letters.size) - np.repeat(starts, ends - starts + 1)
    if places.max() > 6:  # longer than any image
        raise Fault(f'has damaged run lengths {shown(counts)}')
    lengths = np.add.reduceat((letters & 31) << (5 * places), starts)
    lengths -= (letters[ends] & 16 > 0) * (1 << (5 * (places[ends] + 1)))
    for part in (lengths[1::2], lengths[2::2]):
        np.cumsum(part, out=part)
    return lengths


def encoded(outline: list | dict, size: tuple[int, int]) -> dict:
    """Return an outline as one compressed mask of pycocotools."""
    if isinstance(outline, list):
        return coco_mask.merge(coco_mask.frPyObjects(outline, *size))
    if isinstance(outline['counts'], list):
        return coco_mask.frPyObjects(outline, *size)
    return outline


def outline_box(outline: list | dict) -> list[float]:
    """Return x, y, width and height of polygons or run lengths."""
    if isinstance(outline, dict):
        return coco_mask.toBbox(encoded(outline, outline['size'])).tolist()
    points = outline[0] if len(outline) == 1 else [x for part in outline for x in part]
    xs, ys = points[::2], points[1::2]
    x, y = min(xs), min(ys)
    return [x, y, max(xs) - x, max(ys) - y]


def is_outside(outline: list[float], box: list[float]) -> bool:
    """Return whether more than half of an outline's box lies outside of another box.

    A box may be larger than the outline, as that of an object that is partly hidden.
    """
    (x, y, w, h), (left, top, width, height) = outline, box
    across = min(x + w, left + width) - max(x, left)
    down = min(y + h, top + height) - max(y, top)
    return max(across, 0) * max(down, 0) < 0.5 * w * h


def object_area(entry: dict, size: tuple[int, int]) -> float:
    """Return the pixels of an annotation's outline, or of its box without one."""
    if 'segmentation' in entry:
        return int(coco_mask.area(encoded(entry['segmentation'], size)))
    return entry['bbox'][2] * entry['bbox'][3]


def count_outlines(annotations: list[dict]) -> Counter:
    """Count objects with an outline, with the rectangle of their box, and with none."""
    return Counter(map(_kind_of_outline, annotations))


def _kind_of_outline(entry: dict) -> str:
    outline = entry.get('segmentation')
    if outline is None:
        return 'none'
    if not isinstance(outline, list) or len(outline) != 1 or len(outline[0]) > 10:
        return 'outline'
    points = {*zip(outline[0][::2], outline[0][1::2], strict=True)}
    x, y, w, h = entry['bbox']
    corners = {(x, y), (x + w, y), (x + w, y + h), (x, y + h)}
    same = all(min(dist(p, c) for c in corners) <= 1.5 for p in points)
    return 'rectangle' if same and len(points) == 4 else 'outline'
