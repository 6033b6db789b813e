"""Write results in the JSON format of COCO."""

from collections.abc import Iterable, Sequence

import numpy as np

from mmattn.errors import MissingPackageError


def encode_mask(mask: np.ndarray) -> dict:
    """Return a mask of shape (H, W) as COCO's compressed run lengths, for JSON.

    Raises:
        ImportError: pycocotools is not installed.
    """
    try:
        from pycocotools import mask as coco_masks
    except ImportError as error:
        raise MissingPackageError(
            'masks of COCO require pycocotools: pip install pycocotools'
        ) from error
    encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
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

    def add(self, result):
        """Add the `Detections` or the `Segmentation` of an image."""
        image_id = len(self.images) + 1
        height, width = result.size
        name = result.source or str(image_id)
        self.images.append(
            dict(id=image_id, file_name=name, height=height, width=width)
        )
        for entry in result.to_coco(image_id):
            self.annotations.append(entry | dict(id=len(self.annotations) + 1))
            label = entry['category_id'] - 1
            self.names.setdefault(label, result.name_of(label))

    def as_dict(self) -> dict:
        """Return the images, annotations and categories."""
        categories = [
            dict(id=label + 1, name=self.names[label]) for label in sorted(self.names)
        ]
        return dict(
            images=self.images, annotations=self.annotations, categories=categories
        )


def coco_document(results: Iterable, classes: Sequence[str] | None = None) -> dict:
    """Return `Detections` or `Segmentation` of images as a document of COCO.

    See `CocoDocument`.
    """
    document = CocoDocument(classes)
    for result in results:
        document.add(result)
    return document.as_dict()
