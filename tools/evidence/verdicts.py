"""Decide comparisons from differences between runs of the same seed.

Two questions are asked of a comparison. Is there a difference? A paired t-test answers.
Is it smaller than a margin? Two one-sided t-tests answer: Schuirmann, "A comparison of
the two one-sided tests procedure and the power approach", Journal of Pharmacokinetics
and Biopharmaceutics 15, 1987. The p-values of a claim's comparisons are corrected after
Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6, 1979, for each question apart: a comparison has one true answer, so at
most one of its two verdicts can be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy import stats

HOLDS, FAILS, SAME = 'holds', 'does not hold', 'no difference'
UNDECIDED, NOT_RUN = 'undecided', 'not run yet'
VERDICTS = HOLDS, FAILS, SAME, UNDECIDED, NOT_RUN
LEVEL = 0.05
FEWEST = 3  # seeds for a verdict


@dataclass(frozen=True)
class PairedTest:
    """State what the differences between paired runs say.

    Attributes:
        seeds: number of differences.
        mean: their mean; NaN without any.
        half: half the width of its 95 percent interval; infinite with fewer than two.
        different: p-value of a difference of zero, two-sided.
        equivalent: p-value of a difference of at least the margin.
    """

    seeds: int
    mean: float
    half: float
    different: float
    equivalent: float


def paired_test(
    differences: Sequence[float], margin: float, exact: bool = False
) -> PairedTest:
    """Test differences between paired runs.

    Args:
        differences: one for each seed.
        margin: differences below it count as none; 0 leaves the question out.
        exact: whether the differences have no noise, so that one decides.

    With fewer than `FEWEST` differences, unless exact, both p-values are 1.
    """
    n = len(differences)
    average = float(np.mean(differences)) if n else float('nan')
    if n and exact:
        different, equivalent = float(average == 0), float(abs(average) >= margin)
        return PairedTest(n, average, 0.0, different, equivalent)
    if n < 2:
        return PairedTest(n, average, inf, 1.0, 1.0)
    error = max(float(stats.sem(differences)), np.finfo(float).tiny)
    half = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * error
    different = equivalent = 1.0
    if n >= FEWEST:
        different = 2 * float(stats.t.sf(abs(average) / error, n - 1))
        equivalent = float(stats.t.sf((margin - abs(average)) / error, n - 1))
    return PairedTest(n, average, half, different, equivalent if margin else 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number, in the same order."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind='stable')):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(1.0, largest)
    return corrected


def decide(tests: Sequence[PairedTest]) -> list[str]:
    """Return the verdicts of the comparisons of one claim, all that are planned.

    A comparison holds, or does not hold, if there is a difference, and its sign says
    which. Otherwise there may be no difference as large as the margin. A comparison
    that has not run counts in the correction.
    """
    different = holm([test.different for test in tests])
    equivalent = holm([test.equivalent for test in tests])
    verdicts = []
    for test, unlike, alike in zip(tests, different, equivalent, strict=True):
        if test.seeds == 0:
            verdicts.append(NOT_RUN)
        elif unlike <= LEVEL:
            verdicts.append(HOLDS if test.mean > 0 else FAILS)
        else:
            verdicts.append(SAME if alike <= LEVEL else UNDECIDED)
    return verdicts


def equivalence_power(deviation: float, seeds: int, margin: float) -> float:
    """Return the probability of finding no difference between equal networks.

    It is the share of 20,000 draws, exact to about one percent.

    Args:
        deviation: standard deviation of the differences between paired runs.
        seeds: number of pairs, at least two.
        margin: see `paired_test`; one comparison, without a correction.
    """
    means, errors = drawn_series(deviation, seeds)
    half = stats.t.ppf(1 - LEVEL, seeds - 1) * errors
    return float(np.mean(abs(means) + half < margin))


def difference_power(deviation: float, seeds: int, difference: float) -> float:
    """Return the probability of finding a true difference, of either sign."""
    means, errors = drawn_series(deviation, seeds)
    half = stats.t.ppf(1 - LEVEL / 2, seeds - 1) * errors
    return float(np.mean(abs(means + difference) > half))


def drawn_series(deviation: float, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard errors of 20,000 series of differences around zero."""
    draws = np.random.default_rng(0).normal(0, deviation, (20_000, seeds))
    return draws.mean(1), stats.sem(draws, axis=1)
