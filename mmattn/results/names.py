"""Name classes, for results of models whose classes may be unknown."""

from collections.abc import Iterable, Sequence

import numpy as np


def class_name(classes: Sequence[str] | None, label: int) -> str:
    """Return the name of a class, or its label as text where names are unknown."""
    known = classes is not None and 0 <= label < len(classes)
    return str(classes[label]) if known else str(int(label))


def class_names(classes: Sequence[str] | None, labels: Iterable[int]) -> list[str]:
    return [class_name(classes, label) for label in labels]


def label_type(num_classes: int) -> type[np.integer]:
    """Return the smallest type of label maps for this many classes."""
    return np.uint8 if num_classes <= 2**8 else np.uint16
