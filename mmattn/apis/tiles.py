"""Predict a large image tile by tile, and merge the results.

sahi cuts the image. An object is whole in a tile, unless its box ends at a border of
the tile beyond which the image goes on. If whole objects overlap, the best one
stays, as in the detector's own non-maximum suppression. A part that lies in a whole
object by half its area is dropped. The parts that remain are larger than the overlap of
the tiles: sahi's greedy non-maximum merging joins them.

A pixel of a label map comes from the tile whose border is farthest from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..images import tile_boxes
from ..images.draw import import_supervision
from ..results import Detections, Segmentation

SAME = dict(match_metric='IOU', match_threshold=0.5)
PART = dict(match_metric='IOS', match_threshold=0.5)  # over the smaller box
EDGE = 2  # pixels from the border in which a box ends there


def predict_tiles(
    model: Callable,
    image: np.ndarray,
    tile: int | tuple[int, int],
    overlap: float = 0.2,
    *,
    scale: float | None = None,
    batch_size: int = 1,
    score: float = 0.0,
) -> Detections | Segmentation:
    """Return the result of an image that a model sees tile by tile.

    Args:
        model: `ConfigModel` or `FileModel`.
        image: shape (H, W, 3), uint8 RGB.
        tile, overlap: see `tile_boxes`.
        scale: factor of a tile's sides, in place of the resize of the test pipeline.
        batch_size: tiles that run at a time.
        score: objects with a lower score are left out before the others are merged.
    """
    boxes = tile_boxes(image.shape[:2], tile, overlap)
    parts = []
    for start in range(0, len(boxes), batch_size):
        chunk = boxes[start : start + batch_size]
        results = model([image[y1:y2, x1:x2] for x1, y1, x2, y2 in chunk], scale)
        pairs = zip(results, chunk, strict=True)
        parts += [_placed(each, box, image.shape[:2], score) for each, box in pairs]
    if isinstance(parts[0], Segmentation):
        return merge_label_maps(parts, boxes, image.shape[:2])
    return merge_objects(parts, boxes)


def _placed(
    found: Detections | Segmentation,
    tile: Sequence[int],
    size: tuple[int, int],
    score: float,
) -> Detections | Segmentation:
    """Return a tile's objects in the whole image, with compact masks."""
    if isinstance(found, Segmentation):
        return found
    if score > 0:
        found = found.above(score)
    x, y = tile[:2]
    masks = found.masks
    if masks is not None:
        masks = compact_masks(masks).with_offset(x, y, size)
    boxes = found.boxes + np.array([x, y, x, y], np.float32)
    return replace(found, boxes=boxes, masks=masks, size=size)


def merge_label_maps(
    parts: Sequence[Segmentation], tiles: Sequence[Sequence[int]], size: tuple[int, int]
) -> Segmentation:
    """Merge label maps of tiles (x1, y1, x2, y2) into one of the image's size."""
    labels = np.zeros(size, parts[0].labels.dtype)
    depth = np.full(size, -1, np.int32)  # distance to the border of the pixel's tile
    for part, (x1, y1, x2, y2) in zip(parts, tiles, strict=True):
        inside = np.minimum.outer(
            _to_border(y2 - y1, y1 == 0, y2 == size[0]),
            _to_border(x2 - x1, x1 == 0, x2 == size[1]),
        )
        better = inside > depth[y1:y2, x1:x2]
        labels[y1:y2, x1:x2][better] = part.labels[better]
        depth[y1:y2, x1:x2][better] = inside[better]
    return replace(parts[0], labels=labels)


def _to_border(length: int, first: bool, last: bool) -> np.ndarray:
    """Return the distance of pixels to the ends of a side, where the image goes on."""
    before, after = np.arange(length), np.arange(length)[::-1]
    far = np.full(length, length)
    return np.minimum(far if first else before, far if last else after)


def compact_masks(masks: np.ndarray):
    """Return masks of shape (n, H, W) as `supervision.CompactMask`."""
    sv = import_supervision()
    # Pasted masks may leave their boxes by a pixel.
    boxes = sv.mask_to_xyxy(masks) if len(masks) else np.zeros((0, 4))
    return sv.CompactMask.from_dense(masks, boxes, masks.shape[1:])


def merge_objects(
    parts: Sequence[Detections], tiles: Sequence[Sequence[int]]
) -> Detections:
    """Return the objects of all tiles (x1, y1, x2, y2), best first, each once.

    The objects of each tile are placed in the whole image.
    """
    from sahi.postprocess.combine import batched_greedy_nmm, batched_nms

    found = _joined(parts)
    cut = np.concatenate(
        [_is_cut(part, tile) for part, tile in zip(parts, tiles, strict=True)]
    )
    rows = np.column_stack([found.boxes, found.scores, found.labels])
    rows = rows.astype(np.float64)
    whole = np.flatnonzero(~cut)
    if len(whole):
        whole = whole[batched_nms(rows[whole], **SAME)]
    rest = np.flatnonzero(cut)
    rest = rest[~_lies_in(rows[rest], rows[whole])]
    groups = [[i] for i in whole]
    if len(rest):
        joining = batched_greedy_nmm(rows[rest], **PART)
        groups += [rest[[i, *others]].tolist() for i, others in joining.items()]
    groups.sort(key=lambda group: (-found.scores[group[0]], group[0]))
    merged = found[[group[0] for group in groups]]
    for box, group in zip(merged.boxes, groups, strict=True):
        box[:2] = found.boxes[group, :2].min(0)
        box[2:] = found.boxes[group, 2:].max(0)
    if found.masks is not None and groups:
        masks = [_union(found.masks[group]) for group in groups]
        merged.masks = type(found.masks).merge(masks)
    return merged


def _is_cut(part: Detections, tile: Sequence[int]) -> np.ndarray:
    """Return which boxes end at a border of their tile that is not the image's."""
    height, width = part.size
    x1, y1, x2, y2 = tile
    ends = part.boxes <= np.array([x1, y1, -np.inf, -np.inf]) + EDGE
    ends |= part.boxes >= np.array([np.inf, np.inf, x2, y2]) - EDGE
    return (ends & [x1 > 0, y1 > 0, x2 < width, y2 < height]).any(1)


def _lies_in(parts: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return which parts have half their area in a whole object of their class.

    Both are rows of box, score and label, shape (n, 6).
    """
    from shapely import STRtree, box  # comes with sahi

    part, other = STRtree(box(*whole[:, :4].T)).query(box(*parts[:, :4].T))
    inner, outer = parts[part], whole[other]
    first = np.maximum(inner[:, :2], outer[:, :2])
    last = np.minimum(inner[:, 2:4], outer[:, 2:4])
    shared = np.clip(last - first, 0, None).prod(1)
    area = (inner[:, 2:4] - inner[:, :2]).prod(1)
    enough = shared >= PART['match_threshold'] * area
    found = np.zeros(len(parts), bool)
    found[part[enough & (inner[:, 5] == outer[:, 5])]] = True
    return found


def _joined(parts: Sequence[Detections]) -> Detections:
    masks = None
    if parts[0].masks is not None:
        masks = type(parts[0].masks).merge([part.masks for part in parts])
    return replace(
        parts[0],
        boxes=np.concatenate([part.boxes for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        names=[name for part in parts for name in part.names],
        masks=masks,
    )


def _union(masks):
    """Merge compact masks into one, stored for the box around them only."""
    if len(masks) == 1:
        return masks
    x1, y1 = masks.bbox_xyxy[:, :2].min(0)
    x2, y2 = masks.bbox_xyxy[:, 2:].max(0) + 1
    union = np.zeros((1, y2 - y1, x2 - x1), bool)
    for i, (x, y) in enumerate(masks.offsets - (x1, y1)):
        crop = masks.crop(i)
        union[0, y : y + crop.shape[0], x : x + crop.shape[1]] |= crop
    return compact_masks(union).with_offset(int(x1), int(y1), masks.image_shape)
