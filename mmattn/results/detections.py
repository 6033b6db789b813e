"""Objects that a detector found in an image."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from ..images.draw import (
    class_colors,
    draw_objects,
    import_supervision,
    open_picture,
)
from .coco import encode_mask

SCORE = 0.3  # lowest score of an object that is shown, written or counted


@dataclass
class Detections:
    """Objects in an image, best first.

    Attributes:
        boxes: shape (n, 4), float32: x1, y1, x2, y2 in pixels of the original image.
        scores: shape (n,), float32.
        labels: shape (n,), int64.
        names: class of each object; its label as text if the classes are unknown.
        masks: shape (n, H, W), bool, in the size of the original image, or None. Those
            of a tiled image are a `supervision.CompactMask`, which numpy.asarray makes
            an array.
        source: path or address of the image, None for an array.
        size: height and width of the original image, None if they are unknown.
        classes: names of the model's classes, or None.
        threshold: lowest score that `draw` shows; `above` sets it.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    names: list[str]
    masks: np.ndarray | None = None
    source: str | None = None
    size: tuple[int, int] | None = None
    classes: list[str] | None = None
    threshold: float = SCORE

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index) -> 'Detections':
        """Return the objects of a slice, a mask or a list of indices."""
        keep = np.arange(len(self))[index]
        if keep.ndim != 1:
            raise IndexError(f'the index must select a list of objects, got {index!r}')
        return replace(
            self,
            boxes=self.boxes[keep],
            scores=self.scores[keep],
            labels=self.labels[keep],
            names=[self.names[i] for i in keep],
            masks=None if self.masks is None else self.masks[keep],
        )

    def name_of(self, label: int) -> str:
        """Return the name of a class that occurs."""
        return self.names[self.labels.tolist().index(label)]

    def above(self, score: float) -> 'Detections':
        """Return the objects with at least this score."""
        return replace(self[self.scores >= score], threshold=score)

    def to_supervision(self):
        """Return `supervision.Detections` with the names under `class_name`."""
        return import_supervision().Detections(
            xyxy=self.boxes.astype(np.float32),
            mask=self.masks,
            confidence=self.scores,
            class_id=self.labels.astype(int),
            data={'class_name': np.array(self.names, str)},
        )

    def to_coco(
        self, image_id: int = 1, category_ids: Mapping[str, int] | None = None
    ) -> list[dict]:
        """Return annotations of COCO with a `score`, as its evaluation reads them.

        Masks are encoded as compressed run lengths, which requires pycocotools.

        Args:
            image_id: id of the image.
            category_ids: id of each class by its name; by default the label plus 1.
        """
        found = []
        for i, (x1, y1, x2, y2) in enumerate(self.boxes.tolist()):
            category = int(self.labels[i]) + 1
            if category_ids is not None:
                category = category_ids[self.names[i]]
            entry = dict(
                image_id=image_id,
                category_id=category,
                bbox=[x1, y1, x2 - x1, y2 - y1],
                area=(x2 - x1) * (y2 - y1),
                iscrowd=0,
                score=float(self.scores[i]),
            )
            if isinstance(self.masks, np.ndarray):
                mask = self.masks[i]
                entry |= dict(segmentation=encode_mask(mask), area=int(mask.sum()))
            elif self.masks is not None:  # compact: never as large as the image
                crop, corner = self.masks.crop(i), self.masks.offsets[i].tolist()
                encoded = encode_mask(crop, corner, self.masks.image_shape)
                entry |= dict(segmentation=encoded, area=int(crop.sum()))
            found.append(entry)
        return found

    def draw(
        self,
        image: np.ndarray | Image.Image | None = None,
        *,
        score: float | None = None,
        with_text: bool | None = None,
        with_boxes: bool = True,
        with_masks: bool = True,
        shown_at: float = 1.0,
    ) -> np.ndarray:
        """Return the image with boxes, masks, names and scores, RGB uint8.

        Each class has a color. Objects of a model with one class differ in color.
        This requires supervision.

        Args:
            image: the original image; by default it is read again from `source`.
            score: lowest score that is drawn; it defaults to the score of `above`, and
                to 0.3 without it.
            with_text: whether to write names and scores. By default they are written
                for at most 30 objects, if they cover less than half of their boxes.
                Otherwise, a legend in the upper left corner counts the objects of
                each class, unless it covers a quarter of the image.
            with_boxes: whether to draw boxes.
            with_masks: whether to draw masks, if there are any.
            shown_at: factor by which the picture is shrunk before it is seen. Lines
                are drawn so that they are two pixels wide then.
        """
        found = self.above(self.threshold if score is None else score)
        return draw_objects(
            open_picture(image, self.source),
            found.boxes,
            found.masks if with_masks else None,
            found.colors(),
            [f'{n} {s:.2f}' for n, s in zip(found.names, found.scores, strict=True)],
            found.legend(),
            with_text=with_text,
            with_boxes=with_boxes,
            shown_at=shown_at,
        )

    def colors(self) -> list[list[int]]:
        """Return the RGB color of each object as `draw` chooses it."""
        if not self._has_classes():
            return class_colors(len(self))
        palette = class_colors(int(self.labels.max(initial=0)) + 1)
        return [palette[label] for label in self.labels.tolist()]

    def legend(self) -> list[tuple[str, list[int] | None]]:
        """Return a line for each class with its objects, and its color if it has one.

        The class with the most objects comes first.
        """
        colors = dict(zip(self.labels.tolist(), self.colors(), strict=True))
        return [
            (f'{self.name_of(i)}: {count}', colors[i] if self._has_classes() else None)
            for i, count in Counter(self.labels.tolist()).most_common()
        ]

    def _has_classes(self) -> bool:
        return len(self.classes or set(self.names)) > 1
