"""Decide a claim from differences between runs of the same seed.

With few seeds a bootstrap interval is too narrow: that of three differences reaches
from the smallest to the largest, so a difference of zero lies outside of it one time in
four. Student's interval does not have this fault but assumes normal differences. A
verdict therefore requires both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

HOLDS, FAILS, UNDECIDED = 'holds', 'does not hold', 'undecided at this scale'
NOT_RUN = 'not run yet'
VERDICTS = HOLDS, FAILS, UNDECIDED, NOT_RUN
RESAMPLES, LEVEL = 10000, 0.95
FEWEST = 3  # seeds for a verdict


@dataclass(frozen=True)
class Decision:
    """State a verdict and what it was decided from.

    Attributes:
        seeds: number of differences.
        mean: their mean; NaN without any.
        bootstrap, student: intervals of the mean, None with fewer than two seeds.
        verdict: one of `HOLDS`, `FAILS`, `UNDECIDED`, `NOT_RUN`.
    """

    seeds: int
    mean: float
    bootstrap: tuple[float, float] | None
    student: tuple[float, float] | None
    verdict: str


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean, with a fixed seed."""
    if np.ptp(differences) == 0:
        return float(differences[0]), float(differences[0])
    found = stats.bootstrap(
        (np.asarray(differences, dtype=float),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method='percentile',
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def student_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of the mean."""
    values = np.asarray(differences, dtype=float)
    half = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values)
    return float(values.mean() - half), float(values.mean() + half)


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of one further value, given at least two."""
    found = np.asarray(values, dtype=float)
    scale = found.std(ddof=1) * np.sqrt(1 + 1 / len(found))
    low, high = stats.t.interval(LEVEL, len(found) - 1, found.mean(), scale)
    return float(low), float(high)


def decide(
    differences: Sequence[float], smallest: float = 0.0, allowed: float = 0.0
) -> Decision:
    """Decide whether a difference is positive, seed by seed.

    It holds if both intervals lie above zero. It does not hold if both lie below
    `smallest`, the smallest difference that would count. Otherwise, and with fewer than
    `FEWEST` seeds, it is undecided. `allowed` lowers both bounds.
    """
    n = len(differences)
    if n == 0:
        return Decision(0, float('nan'), None, None, NOT_RUN)
    if n == 1:
        return Decision(1, float(differences[0]), None, None, UNDECIDED)
    intervals = bootstrap_interval(differences), student_interval(differences)
    verdict = UNDECIDED
    if n >= FEWEST:
        if min(low for low, _ in intervals) > -allowed:
            verdict = HOLDS
        elif max(high for _, high in intervals) < smallest - allowed:
            verdict = FAILS
    return Decision(n, float(np.mean(differences)), *intervals, verdict)


def combined(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim from those of its comparisons.

    The claim holds if all of them do, and does not hold if one does not.
    """
    if all(verdict == NOT_RUN for verdict in verdicts):
        return NOT_RUN
    if FAILS in verdicts:
        return FAILS
    if all(verdict == HOLDS for verdict in verdicts):
        return HOLDS
    return UNDECIDED
