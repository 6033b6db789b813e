"""Decide comparisons from differences between runs of the same seed.

Two questions are asked of a comparison. Is there a difference? A paired t-test answers,
with the deviation of the differences, or of all networks that are alike.
Is it smaller than a margin? Two one-sided t-tests answer: Schuirmann, "A comparison of
the two one-sided tests procedure and the power approach", Journal of Pharmacokinetics
and Biopharmaceutics 15, 1987. The p-values of a claim's comparisons are corrected after
Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6, 1979, for each question apart: a comparison has one true answer, so at
most one of its two verdicts can be wrong. The level allows for several looks: Pocock,
"Group sequential methods in the design and analysis of clinical trials", Biometrika 64,
1977.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy import stats

HOLDS, FAILS, SAME = 'holds', 'does not hold', 'no difference'
UNDECIDED, NOT_RUN = 'undecided', 'not run yet'
VERDICTS = HOLDS, FAILS, SAME, UNDECIDED, NOT_RUN
LOOKS = 3, 5, 8, 12  # numbers of seeds after which we looked, and added more
LEVEL = 0.0178  # of each look, 0.05 of all
COVERAGE = 0.95
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


def residual(table: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the deviation of runs, beside what network and seed add, and its freedom.

    It comes from the two-way analysis of variance without replication.

    Args:
        table: a row for each network with a column for each seed.
    """
    table = np.asarray(table)
    left = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float(np.sqrt((left**2).sum() / freedom)), freedom


def paired_test(
    differences: Sequence[float],
    margin: float,
    exact: bool = False,
    spread: tuple[float, int] | None = None,
) -> PairedTest:
    """Test differences between paired runs.

    Args:
        differences: one for each seed.
        margin: differences below it count as none; 0 leaves the question out.
        exact: whether the differences have no noise, so that one decides.
        spread: deviation of a difference and its degrees of freedom; None takes those
            of the differences.

    With fewer than `FEWEST` differences, unless exact, both p-values are 1.
    """
    n = len(differences)
    average = float(np.mean(differences)) if n else float('nan')
    if n and exact:
        different, equivalent = float(average == 0), float(abs(average) >= margin)
        return PairedTest(n, average, 0.0, different, equivalent)
    if n < 2:
        return PairedTest(n, average, inf, 1.0, 1.0)
    deviation, freedom = spread or (float(np.std(differences, ddof=1)), n - 1)
    error = max(deviation / n**0.5, np.finfo(float).tiny)
    half = float(stats.t.ppf((1 + COVERAGE) / 2, freedom)) * error
    different = equivalent = 1.0
    if n >= FEWEST:
        different = 2 * float(stats.t.sf(abs(average) / error, freedom))
        equivalent = float(stats.t.sf((margin - abs(average)) / error, freedom))
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


def equivalence_power(
    deviation: float, seeds: int, margin: float, freedom: int
) -> float:
    """Return the probability of finding no difference between equal networks.

    It is the share of 20,000 draws, exact to about one percent.

    Args:
        deviation: standard deviation of the differences between paired runs.
        seeds: number of pairs, at least two.
        margin: see `paired_test`; one comparison, without a correction.
        freedom: degrees of freedom of the deviation.
    """
    means, errors = drawn_series(deviation, seeds, freedom)
    half = stats.t.ppf(1 - LEVEL, freedom) * errors
    return float(np.mean(abs(means) + half < margin))


def difference_power(
    deviation: float, seeds: int, difference: float, freedom: int
) -> float:
    """Return the probability of finding a true difference, of either sign."""
    means, errors = drawn_series(deviation, seeds, freedom)
    half = stats.t.ppf(1 - LEVEL / 2, freedom) * errors
    return float(np.mean(abs(means + difference) > half))


def drawn_series(
    deviation: float, seeds: int, freedom: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard errors of 20,000 series of differences around zero."""
    rng, error = np.random.default_rng(0), deviation / seeds**0.5
    errors = error * np.sqrt(rng.chisquare(freedom, 20_000) / freedom)
    return rng.normal(0, error, 20_000), errors
