"""Parameters and FLOPs beside Tables 8 and 14 of the paper."""

from pathlib import Path

import pytest

pytest.importorskip('mmengine')

from projects.video.counts import TABLE_8, TABLE_14, table

README = Path(__file__).with_name('README.md').read_text()
# Relative deviations of the FLOPs; README.md has the reason of the largest.
DEVIATIONS = {'HyLiSANet-B': 0.026}
DEVIATION = 0.006


def test_readme_has_the_counts():
    for rows in (TABLE_8, TABLE_14):
        counted = table(rows)
        assert counted in README
        for row, line in zip(rows, counted.splitlines()[2:], strict=True):
            _, name, _, params, _, flops, *_ = line.split('|')
            if row.params is not None:
                assert abs(float(params) - row.params) < 0.0095
            deviation = abs(float(flops) / row.flops - 1)
            assert deviation < DEVIATIONS.get(name.strip(), DEVIATION)
