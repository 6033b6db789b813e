"""tools/evidence/report.py: differences, tables and the page."""

import re
from pathlib import Path

import pytest

for name in ('mmengine', 'scipy', 'matplotlib'):
    pytest.importorskip(name)

from evidence_claims import METRIC, make_claim, make_run  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402

from tools.evidence import report, run_rows  # noqa: E402
from tools.evidence.claim import Comparison  # noqa: E402
from tools.evidence.draw_runs import draw  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return a folder with runs of both variants, and of one seed without a pair."""
    claim = make_claim()
    monkeypatch.setattr(report, 'load_claim', lambda name: claim)
    monkeypatch.setattr(report, 'claim_names', lambda: ['x'])
    for seed, (two, eight) in enumerate([(80, 81), (82, 83.1), (79, 79.9), (70, None)]):
        for name, value in (('two', two), ('eight', eight)):
            if value is not None:
                run = make_run(name, seed, claim.config_hash(name), **{METRIC: value})
                run_rows.add_run(tmp_path / 'x.csv', run)
    (tmp_path / 'README.md').write_text(f'# Head\n{report.BEGIN}{report.END}tail\n')
    return tmp_path


def test_differences_are_between_runs_of_a_seed(tables):
    results = report.load_results('x', tables)
    (comparison,) = results.claim.comparisons
    found = results.differences(comparison)
    assert found == pytest.approx({0: 1.0, 1: 1.1, 2: 0.9})
    lower = Comparison('', 'eight', 'two', lower_is_better=True)
    assert results.differences(lower)[0] == pytest.approx(-1.0)
    gain = Comparison('', ('eight', 'eight'), ('two', f'two@{METRIC}'))
    assert results.differences(gain)[1] == pytest.approx(2.2)


def test_the_page_is_written_once_and_checked(tables):
    with pytest.raises(SystemExit, match='not up to date'):
        report.main(['--check', '--tables', str(tables)])
    assert not (tables / 'x.png').exists()
    for _ in range(2):
        report.main(['--tables', str(tables)])
        page = (tables / 'README.md').read_text()
        details = (tables / 'claims/x.md').read_text()
    report.main(['--check', '--tables', str(tables)])
    assert page.startswith('# Head\n') and page.endswith('tail\n')
    assert 'comparisons: holds (1).\n' in page
    assert re.search(r'\| \[X\]\(claims/x.md\) \| .+ \| 1 \| \*\*holds\*\* \|', page)
    assert '| `two` | 1 | 0.0 | 4 | 77.75 ± 5.3 | 1.00 |' in details
    assert '| eight heads against two | +1 | 3 | +0.9 to +1.1 |' in details
    assert 'Verdict: **holds**.' in details and '](../x.png)' in details


def test_pages_of_claims_are_checked_and_those_of_none_removed(tables):
    report.main(['--tables', str(tables)])
    for name in ('x', 'gone'):
        page = tables / f'claims/{name}.md'
        page.write_text('# Other\n')
        with pytest.raises(SystemExit, match='not up to date'):
            report.main(['--check', '--tables', str(tables)])
        report.main(['--tables', str(tables)])
    assert [path.name for path in (tables / 'claims').iterdir()] == ['x.md']


def test_many_panels_are_drawn_in_rows(tables):
    claim = make_claim(
        comparisons=[Comparison('', 'eight', 'two', metric=f'm{i}') for i in range(6)]
    )
    metrics = {f'm{i}': float(i) for i in range(6)}
    runs = {(name, 0): make_run(name, **metrics) for name in claim.variants}
    draw(report.Results('x', claim, runs, 0), tables / 'rows.png')
    height, width = plt.imread(tables / 'rows.png').shape[:2]
    assert 1.5 < width / height < 2  # two rows of five panels


def test_further_seeds_are_compared_with_the_first(tables):
    claim = report.load_claim('x')
    # 80, 82 and 79 predict 80.33 +- 7.59. Seed 3 has 70.
    for seed, value in ((4, 87.9), (5, 88.1)):
        run = make_run('two', seed, claim.config_hash('two'), **{METRIC: value})
        run_rows.add_run(tables / 'x.csv', run)
    results = report.load_results('x', tables)
    text = report.fresh_seeds([results, results])
    assert '1 of 3 runs' in text and '`x` `two` seed 3, `x` `two` seed 5.' in text


def test_a_damaged_table_ends_the_report(tables):
    (tables / 'x.csv').write_text('variant\n')
    with pytest.raises(SystemExit, match=r'x\.csv, line 1: the columns'):
        report.main(['--tables', str(tables)])


def test_a_page_without_marks_is_refused(tables):
    (tables / 'README.md').write_text('# Head\n')
    with pytest.raises(SystemExit, match='must have the lines'):
        report.main(['--tables', str(tables)])
    assert (tables / 'README.md').read_text() == '# Head\n'


def test_our_page_is_up_to_date():
    assert report.write_all(ROOT / 'docs/evidence', check=True), (
        'run python -m tools.evidence.report'
    )
