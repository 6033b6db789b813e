"""Time models on an image, in turns."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ..apis import Predictor
from .views import Result


@dataclass
class Timed:
    """A model's runs on an image.

    Attributes:
        result: of the last run.
        first: seconds of the run that is not counted, as it prepares the model.
        seconds: of each other run, from the pixels to the result.
    """

    result: Result | None = None
    first: float | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return the shortest and the longest time."""
        return (min(self.seconds), max(self.seconds)) if self.seconds else None


def ratios(first: Timed, second: Timed) -> list[float]:
    """Return how many times as long as the second the first took in each turn."""
    return [a / b for a, b in zip(first.seconds, second.seconds, strict=False)]


def time_in_turns(
    predictors: Sequence[Predictor], image: np.ndarray, runs: int
) -> Iterator[list[Timed]]:
    """Yield the times so far after each run of each model.

    The models take turns, so that a change of the machine's load meets all of them. The
    first run of each is not one of the `runs`. The image is (H, W, 3), uint8 RGB.
    """
    times = [Timed() for _ in predictors]
    for run in range(runs + 1):
        for predictor, each in zip(predictors, times, strict=True):
            start = time.perf_counter()
            each.result = predictor(image)
            spent = time.perf_counter() - start
            if run == 0:
                each.first = spent
            else:
                each.seconds.append(spent)
            yield times
