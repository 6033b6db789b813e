"""Classes of a whole image."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from ..images.draw import draw_lines, import_supervision, open_picture
from .names import class_name

LEAST = 0.005  # score that is not written as 0.00


@dataclass
class Classification:
    """The probability of each class.

    Attributes:
        scores: shape (classes,), float32.
        classes: names of the classes, or None.
        source: path or address of the image, None for an array.
        size: height and width of the original image, None if they are unknown.
    """

    scores: np.ndarray
    classes: list[str] | None = None
    source: str | None = None
    size: tuple[int, int] | None = None

    @property
    def label(self) -> int:
        """Return the label of the best class."""
        return int(self.scores.argmax())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the names and scores of the best classes, best first."""
        best = np.argsort(-self.scores, kind='stable')[:count]
        return [(class_name(self.classes, i), float(self.scores[i])) for i in best]

    def to_supervision(self):
        """Return `supervision.Classifications` of all classes."""
        labels = np.arange(len(self.scores))
        return import_supervision().Classifications(labels, self.scores)

    def draw(
        self, image: np.ndarray | Image.Image | None = None, *, count: int = 5
    ) -> np.ndarray:
        """Return the image with the best classes and their scores, RGB uint8.

        Args:
            image: the original image; by default it is read again from `source`.
            count: classes to write.
        """
        lines = [text for text, _ in self.legend(count)]
        return draw_lines(open_picture(image, self.source), lines)

    def legend(self, count: int = 5) -> list[tuple[str, None]]:
        """Return lines with the best classes and their scores, without a color.

        Scores that would be written as 0.00 are left out after the best class.
        """
        best, *others = self.top(count)
        shown = [best, *(each for each in others if each[1] >= LEAST)]
        return [(f'{name} {score:.2f}', None) for name, score in shown]
