"""Write results in the JSON format of COCO."""

from collections.abc import Iterable, Sequence

import numpy as np

from mmattn.errors import import_optional


def encode_mask(
    mask: np.ndarray,
    left_top: tuple[int, int] = (0, 0),
    size: tuple[int, int] | None = None,
) -> dict:
    """Return a mask as COCO's compressed run lengths, for JSON.

    Args:
        mask: shape (H, W), bool: a whole mask or a crop, outside of which it is empty.
        left_top: x and y of the crop.
        size: height and width of the whole mask; defaults to the size of `mask`.

    Raises:
        ImportError: pycocotools is not installed.
    """
    message = 'masks of COCO require pycocotools: pip install pycocotools'
    coco_masks = import_optional(message, 'pycocotools.mask')
    height, width = size or mask.shape
    if mask.shape == (height, width):
        encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
    else:  # run lengths go down the columns; only columns of the crop are filled
        (x, y), (rows, columns) = left_top, mask.shape
        filled = np.zeros((columns, height), np.int8)
        filled[:, y : y + rows] = mask.T
        ends = np.flatnonzero(np.diff(filled.ravel(), prepend=0, append=0))
        ends = [0, *(ends + x * height).tolist()]
        ends += [height * width] * (ends[-1] < height * width)
        runs = dict(size=[height, width], counts=np.diff(ends).tolist())
        encoded = coco_masks.frPyObjects(runs, height, width)
    return dict(size=list(encoded['size']), counts=encoded['counts'].decode())


class CocoDocument:
    """Collect results as a document of COCO.

    Ids count from 1. The annotations of detections have a `score`, so that the list
    under `annotations` is also what `COCO.loadRes` takes.

    Args:
        classes: names of the classes; by default those that the results name.
    """

    def __init__(self, classes: Sequence[str] | None = None):
        self.images, self.annotations = [], []
        self.names = dict(enumerate(classes or ()))
        self._num_images = self._num_annotations = 0

    def add(self, result):
        """Add the `Detections` or the `Segmentation` of an image."""
        image, annotations = self.entries(result)
        self.images.append(image)
        self.annotations += annotations

    def entries(self, result) -> tuple[dict, list[dict]]:
        """Return the next image and its annotations, without keeping them."""
        self._num_images += 1
        image_id = self._num_images
        height, width = result.size
        name = result.source or str(image_id)
        annotations = result.to_coco(image_id)
        for entry in annotations:
            self._num_annotations += 1
            entry['id'] = self._num_annotations
            label = entry['category_id'] - 1
            self.names.setdefault(label, result.name_of(label))
        image = dict(id=image_id, file_name=name, height=height, width=width)
        return image, annotations

    def categories(self) -> list[dict]:
        """Return the categories of all results so far."""
        return [
            dict(id=label + 1, name=self.names[label]) for label in sorted(self.names)
        ]

    def as_dict(self) -> dict:
        """Return the images, annotations and categories."""
        return dict(
            images=self.images,
            annotations=self.annotations,
            categories=self.categories(),
        )


def coco_document(results: Iterable, classes: Sequence[str] | None = None) -> dict:
    """Return `Detections` or `Segmentation` of images as a document of COCO.

    See `CocoDocument`.
    """
    document = CocoDocument(classes)
    for result in results:
        document.add(result)
    return document.as_dict()
