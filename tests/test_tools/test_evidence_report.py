"""tools/evidence/report.py: differences, tables and the page."""

import re
from pathlib import Path

import pytest

for name in ('mmengine', 'scipy', 'matplotlib'):
    pytest.importorskip(name)

from evidence_claims import METRIC, make_claim, make_run  # noqa: E402

from tools.evidence import report, run_rows  # noqa: E402
from tools.evidence.claim import Comparison  # noqa: E402

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


def test_our_page_is_up_to_date():
    assert report.write_all(ROOT / 'docs/evidence', check=True), (
        'run python -m tools.evidence.report'
    )
