"""Draw results beside each other, for `mmattn.images.draw.save_panels`."""

import numpy as np

from ..images.draw import shown_at
from . import SCORE, Classification, Detections, Segmentation


def panel(
    result: Detections | Segmentation | Classification,
    image: np.ndarray,
    score: float = SCORE,
) -> tuple[np.ndarray, list]:
    """Return the image with a result, without texts, and the lines of its legend.

    Args:
        result: of the image.
        image: the original image, RGB uint8.
        score: lowest score of an object that is drawn.
    """
    if isinstance(result, Classification):
        return image, result.legend()
    if isinstance(result, Detections):
        result = result.above(score)
        picture = result.draw(image, with_text=False, shown_at=shown_at(image))
    else:
        picture = result.draw(image, with_text=False)
    return picture, result.legend()
