"""The README's figures: counts beside Tables 8 and 14 of the paper, and the demo's."""

import json
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

from projects.video.counts import TABLE_8, TABLE_14, table

README = Path(__file__).with_name('README.md').read_text()
RESULTS = Path(__file__).with_name('playback_speed.json')
# Relative deviations of the FLOPs; README.md comments on the largest.
DEVIATIONS = {'HyLiSANet-B': 0.026}
DEVIATION = 0.006


def check(rows):
    lines = table(rows).splitlines()[2:]
    for row, line in zip(rows, lines, strict=True):
        assert line in README
        _, _, _, params, _, flops, *_ = line.split('|')
        if row.params is not None:
            assert abs(float(params) - row.params) < 0.0095
        deviation = abs(float(flops) / row.flops - 1)
        assert deviation < DEVIATIONS.get(row.name, DEVIATION)


def test_counts_of_lisa():
    check([TABLE_14[-1]])


@pytest.mark.slow
def test_counts():
    check(TABLE_8 + TABLE_14)


def test_results_of_the_demo():
    results = json.loads(RESULTS.read_text())['results']
    for name, row in results.items():
        low, high = row['interval']
        speeds = ' / '.join(f'{speed:.1f}' for speed in row['by_speed'])
        cells = [name, f'{row["accuracy"]:.1f} %', f'{low:.1f} to {high:.1f} %', speeds]
        assert ' | '.join([*cells, str(row.get('cpu_seconds', ''))]) in README
