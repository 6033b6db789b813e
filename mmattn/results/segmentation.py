"""Classes that a segmentor gave to the pixels of an image."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmattn.errors import UserError

from ..images.draw import (
    class_colors,
    draw_labels,
    import_supervision,
    open_picture,
)
from .coco import encode_mask
from .names import class_name, class_names


@dataclass
class Segmentation:
    """The class of each pixel.

    Attributes:
        labels: shape (H, W), an integer type, in the size of the original image.
        classes: names of the classes, or None.
        palette: color of each class, or None.
        source: path or address of the image, None for an array.
    """

    labels: np.ndarray
    classes: list[str] | None = None
    palette: list[list[int]] | None = None
    source: str | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Return the height and width of the image."""
        return self.labels.shape

    def name_of(self, label: int) -> str:
        """Return the name of a class."""
        return class_name(self.classes, label)

    def present(self) -> list[int]:
        """Return the labels that occur, in increasing order."""
        return np.flatnonzero(np.bincount(self.labels.ravel())).tolist()

    def shares(self) -> dict[str, float]:
        """Return the share of the pixels of each class that occurs, by its name."""
        counts = np.bincount(self.labels.ravel())
        return {
            self.name_of(label): float(counts[label] / self.labels.size)
            for label in self.present()
        }

    def colors(self) -> np.ndarray:
        """Return an RGB image of shape (H, W, 3) in the colors of the classes.

        Raises:
            ValueError: there is no palette, or no color for a class.
        """
        if self.palette is None:
            raise UserError(
                'the result has no palette, because neither the exported file nor the '
                'config has one; draw() chooses colors'
            )
        if (label := int(self.labels.max())) >= len(self.palette):
            raise UserError(
                f'the palette has {len(self.palette)} colors, and none for the class '
                f'{label}'
            )
        return np.array(self.palette, np.uint8)[self.labels]

    def to_supervision(self):
        """Return `supervision.Detections` with a mask for each class that occurs."""
        labels = self.present()
        masks = np.stack([self.labels == label for label in labels])
        sv = import_supervision()
        return sv.Detections(
            xyxy=sv.mask_to_xyxy(masks).astype(np.float32),
            mask=masks,
            class_id=np.array(labels, int),
            data={'class_name': np.array(class_names(self.classes, labels), str)},
        )

    def to_coco(
        self, image_id: int = 1, category_ids: Mapping[str, int] | None = None
    ) -> list[dict]:
        """Return an annotation of COCO for each class that occurs, with its pixels.

        This requires pycocotools.

        Args:
            image_id: id of the image.
            category_ids: id of each class by its name; by default the label plus 1.
        """
        found = []
        for label in self.present():
            category = label + 1
            if category_ids is not None:
                category = category_ids[self.name_of(label)]
            mask = self.labels == label
            (top, bottom), (left, right) = map(_extent, (mask.any(1), mask.any(0)))
            found.append(
                dict(
                    image_id=image_id,
                    category_id=category,
                    bbox=[left, top, right - left, bottom - top],
                    area=int(mask.sum()),
                    iscrowd=0,
                    segmentation=encode_mask(mask),
                )
            )
        return found

    def draw(
        self,
        image: np.ndarray | Image.Image | None = None,
        *,
        opacity: float = 0.5,
        with_text: bool = True,
    ) -> np.ndarray:
        """Return the image below the colors of the classes, RGB uint8.

        A label without a color, such as 255 of an ignored pixel, leaves the image.

        Args:
            image: the original image; by default it is read again from `source`.
            opacity: from 0, the image, to 1, the colors.
            with_text: whether to draw a legend of the classes that occur.
        """
        picture = open_picture(image, self.source)
        legend = self.legend() if with_text else ()
        return draw_labels(picture, self.labels, self._colors(), opacity, legend)

    def legend(self) -> list[tuple[str, list[int]]]:
        """Return the name and color of each class that occurs, the largest first."""
        palette = self._colors()
        counts = np.bincount(self.labels.ravel())[: len(palette)]
        order = np.argsort(-counts, kind='stable')
        return [(self.name_of(i), palette[i]) for i in order if counts[i]]

    def _colors(self) -> list[list[int]]:
        if self.palette is not None:
            return self.palette
        return class_colors(
            len(self.classes or ()) or int(self.labels.max(initial=0)) + 1
        )


def _extent(occupied: np.ndarray) -> tuple[int, int]:
    """Return the first index that is set, and the one after the last."""
    found = np.flatnonzero(occupied)
    return int(found[0]), int(found[-1]) + 1
