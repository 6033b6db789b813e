"""projects/evidence/verdicts.py: tests of differences, their correction, and power."""

from dataclasses import astuple
from math import inf

import numpy as np
import pytest
from scipy import stats

from projects.evidence.verdicts import (
    FAILS,
    HOLDS,
    LEVEL,
    LOOKS,
    NOT_RUN,
    SAME,
    UNDECIDED,
    PairedTest,
    decide,
    difference_power,
    equivalence_power,
    holm,
    paired_test,
    residual,
)


def test_a_paired_test_is_that_of_a_table():
    """Mean 2, deviation 1, three seeds: t is 2 sqrt(3) with 2 degrees of freedom."""
    found = paired_test([1.0, 2.0, 3.0], margin=4.0)
    assert (found.seeds, found.mean) == (3, 2.0)
    assert found.half == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    # With 2 degrees of freedom the tail beyond t is 1/2 - t / (2 sqrt(t^2 + 2)).
    t = 2 * 3**0.5
    tail = 0.5 - t / (2 * (t * t + 2) ** 0.5)
    assert found.different == pytest.approx(2 * tail)
    assert found.equivalent == pytest.approx(tail)  # as far from 4 as from 0
    mirrored = paired_test([-1.0, -2.0, -3.0], margin=4.0)
    assert mirrored.mean == -2.0
    assert mirrored.different == pytest.approx(found.different)
    assert mirrored.equivalent == pytest.approx(found.equivalent)


def test_equivalence_is_never_found_beyond_the_margin():
    assert paired_test([0.6, 0.61, 0.62], 0.5).equivalent > 0.99
    assert paired_test([0.0, 0.01, -0.01], 0.5).equivalent < 0.001
    assert paired_test([0.0, 0.01, -0.01], 0.0).equivalent == 1


def test_few_seeds_decide_nothing_unless_they_are_exact():
    assert paired_test([], 0.5).seeds == 0
    one, two = paired_test([3.0], 0.5), paired_test([3.0, 3.1], 0.5)
    assert (one.half, one.different, one.equivalent) == (inf, 1, 1)
    assert (two.different, two.equivalent) == (1, 1) and 0 < two.half < inf
    exact = paired_test([3.0], 0.5, exact=True)
    assert (exact.half, exact.different, exact.equivalent) == (0, 0, 1)
    exact = paired_test([0.0], 0.5, exact=True)
    assert (exact.different, exact.equivalent) == (1, 0)
    alike = paired_test([1.0, 1.0, 1.0], 0.5)
    assert alike.different < 1e-9 and alike.equivalent > 0.99


def test_holm_multiplies_by_the_hypotheses_that_are_left():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.02]) == pytest.approx([0.9, 0.04])
    assert holm([0.6, 0.7]) == [1, 1] and holm([]) == []


def p(different: float, equivalent: float, mean: float = 1.0) -> PairedTest:
    return PairedTest(5, mean, 0.1, different, equivalent)


def test_verdicts_follow_the_corrected_values():
    assert decide([p(0.015, 1)]) == [HOLDS] and decide([p(0.015, 1, -1.0)]) == [FAILS]
    assert decide([p(0.2, 0.015)]) == [SAME] and decide([p(0.2, 0.2)]) == [UNDECIDED]
    assert decide([p(0.01, 0.01)]) == [HOLDS]  # a small difference is one
    # Twice 0.015 is too much; the two questions are corrected apart.
    assert decide([p(0.015, 1), p(0.3, 1)]) == [UNDECIDED, UNDECIDED]
    assert decide([p(0.008, 1), p(0.3, 0.008)]) == [HOLDS, SAME]
    none = paired_test([], 0.5)
    assert decide([p(0.015, 1), none]) == [UNDECIDED, NOT_RUN]


@pytest.mark.slow
def test_wrong_verdicts_are_rare_in_all_looks():
    """Three comparisons, without a difference or with one of the margin."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        runs = rng.normal(size=(3, LOOKS[-1])) * 0.2 + np.array([[0.0], [0.0], [0.5]])
        looks = [decide([paired_test(row[:n], 0.5) for row in runs]) for n in LOOKS]
        wrong += any(
            {first, second} & {HOLDS, FAILS} or third == SAME
            for first, second, third in looks
        )
    assert wrong / 400 < 0.08


def test_looks_share_the_usual_level():
    """Test normal differences after each look, as if their deviation were known."""
    sums = np.random.default_rng(0).normal(size=(400_000, LOOKS[-1])).cumsum(1)
    scores = [abs(sums[:, n - 1]) / n**0.5 for n in LOOKS]
    wrong = np.max(scores, axis=0) > stats.norm.isf(LEVEL / 2)
    assert wrong.mean() == pytest.approx(0.05, abs=0.001)


def test_the_residual_of_two_networks_is_that_of_their_differences():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(2, 5)) + 10 * rng.normal(size=5)
    differences = table[1] - table[0]
    deviation, freedom = residual(table)
    assert freedom == 4
    pooled = paired_test(differences, 0.5, spread=(2**0.5 * deviation, freedom))
    for value, expected in zip(
        astuple(pooled), astuple(paired_test(differences, 0.5)), strict=True
    ):
        assert value == pytest.approx(expected)
    # By hand: means of 2, 3 and 4 on 2 and 4 leave 1, -1, 0 and the opposite.
    assert residual([[2, 1, 3], [2, 5, 5]]) == (pytest.approx(2**0.5), 2)


@pytest.mark.slow
@pytest.mark.parametrize('deviation', [0.3, 0.5])
def test_power_is_the_share_of_draws_that_are_decided(deviation):
    """Compare two of six networks, whose noise is known by all six."""
    rng = np.random.default_rng(1)

    def share(difference: float, question: str) -> float:
        found = []
        for _ in range(1000):
            table = rng.normal(0, deviation / 2**0.5, (6, 5))
            spread, freedom = residual(table)
            test = paired_test(
                table[1] - table[0] + difference, 0.5, spread=(2**0.5 * spread, freedom)
            )
            found.append(getattr(test, question) <= LEVEL)
        return np.mean(found)

    power = equivalence_power(deviation, 5, 0.5, 20)
    assert power == pytest.approx(share(0.0, 'equivalent'), abs=0.04)
    power = difference_power(deviation, 5, 0.3, 20)
    assert power == pytest.approx(share(0.3, 'different'), abs=0.04)


def test_power_without_noise_is_certain():
    assert equivalence_power(1e-3, 5, 0.5, 20) == 1
    assert equivalence_power(50.0, 5, 0.5, 20) == 0
    assert difference_power(0.1, 5, 1.0, 20) > 0.999
