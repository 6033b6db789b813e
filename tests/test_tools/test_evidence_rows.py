"""tools/evidence: rows of runs, and verdicts from differences."""

import itertools

import numpy as np
import pytest

for name in ('mmengine', 'scipy'):
    pytest.importorskip(name)

from evidence_claims import METRIC, make_run  # noqa: E402

from tools.evidence import paired_tests, run_rows  # noqa: E402
from tools.evidence.paired_tests import (  # noqa: E402
    FAILS,
    HOLDS,
    NOT_RUN,
    UNDECIDED,
    combined,
    decide,
)


def test_rows_are_read_as_written_and_replaced_by_their_key(tmp_path):
    path = tmp_path / 'folder' / 'a.csv'
    first, second = make_run(), make_run(seed=1, other=0.25)
    assert run_rows.read_runs(path) == []
    for run in (first, second):
        run_rows.add_run(path, run)
    assert run_rows.read_runs(path) == [first, second]
    again = make_run(**{METRIC: 90.0})
    run_rows.add_run(path, again)
    assert run_rows.read_runs(path) == [again, second]
    assert [p.name for p in path.parent.iterdir()] == ['a.csv']


@pytest.mark.parametrize(
    'damage, message',
    [
        (lambda text: text.replace('seed,', 'sead,'), r"line 1: .*\['seed'\]"),
        (lambda text: text.replace('80.5', '8o.5'), "top1 must be float, got '8o.5'"),
        (lambda text: text.replace('eight,1,', 'eight,0,'), 'are there twice'),
    ],
    ids=['header', 'metric', 'twice'],
)
def test_a_damaged_table_is_refused_and_kept(tmp_path, damage, message):
    path = tmp_path / 'a.csv'
    for seed in (0, 1):
        run_rows.add_run(path, make_run(seed=seed))
    path.write_text(damage(path.read_text()))
    damaged = path.read_text()
    with pytest.raises(run_rows.DamagedTable, match=message) as caught:
        run_rows.add_run(path, make_run(seed=2))
    assert str(path) in str(caught.value)
    assert path.read_text() == damaged


@pytest.mark.parametrize('values', [[0.1, 0.7, 0.4], [-1.0, 2.0, 0.5, 0.75, 3.0]])
def test_intervals_are_those_of_other_formulations(values):
    """All resamples stand for random ones; the quantiles of t come from a table."""
    means = [np.mean(c) for c in itertools.product(values, repeat=len(values))]
    expected = np.quantile(means, [0.025, 0.975], method='inverted_cdf')
    found = paired_tests.bootstrap_interval(values)
    assert found == pytest.approx(expected, abs=0.06)
    quantile = {3: 4.30265, 5: 2.77645}[len(values)]
    half = quantile * (np.var(values) / (len(values) - 1)) ** 0.5
    expected = np.mean(values) - half, np.mean(values) + half
    assert paired_tests.student_interval(values) == pytest.approx(expected, abs=1e-4)
    half *= (len(values) + 1) ** 0.5
    expected = np.mean(values) - half, np.mean(values) + half
    assert paired_tests.prediction_interval(values) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    'differences, smallest, verdict',
    [
        ([1.0, 1.1, 0.9], 0.0, HOLDS),
        ([-1.0, -1.1, -0.9], 0.0, FAILS),
        # The bootstrap alone would decide both.
        ([0.1, 1.0, 2.0], 0.0, UNDECIDED),
        ([-0.1, -1.0, -2.0], 0.0, UNDECIDED),
        ([0.0, 0.01, -0.01], 0.0, UNDECIDED),
        ([0.0, 0.01, -0.01], 0.5, FAILS),
        ([0.1, 0.11, 0.09], 0.5, HOLDS),
        ([0.5, 0.5, 0.5], 0.0, HOLDS),
        ([1.0, 1.1], 0.0, UNDECIDED),
        ([1.0], 0.0, UNDECIDED),
        ([], 0.0, NOT_RUN),
    ],
)
def test_verdicts(differences, smallest, verdict):
    found = decide(differences, smallest)
    assert found.verdict == verdict and found.seeds == len(differences)


def test_a_loss_may_be_allowed():
    assert decide([-0.5, -0.6, -0.4], allowed=1.0).verdict == HOLDS
    assert decide([-1.5, -1.6, -1.4], allowed=1.0).verdict == FAILS
    assert decide([-0.9, -1.1, -1.0], allowed=1.0).verdict == UNDECIDED
    assert decide([-0.5, -0.6, -0.4], allowed=1.0).mean == pytest.approx(-0.5)


def test_no_difference_rarely_holds():
    """Check that noise holds in about one of forty cases, although seeds are few."""
    draws = np.random.default_rng(0).normal(size=(300, 3))
    held = [decide(row).verdict == HOLDS for row in draws]
    assert np.mean(held) < 0.045


def test_verdict_of_a_claim():
    assert combined([HOLDS, HOLDS]) == HOLDS
    assert combined([HOLDS, UNDECIDED]) == UNDECIDED
    assert combined([HOLDS, UNDECIDED, FAILS]) == FAILS
    assert combined([HOLDS, NOT_RUN]) == UNDECIDED
    assert combined([NOT_RUN, NOT_RUN]) == NOT_RUN
