"""docs/export.md has the table of docs/runtimes.csv, without empty cells."""

import re

import pytest

for package in ('mmdet', 'onnxscript'):
    pytest.importorskip(package)

from tools.benchmark.measure import read_csv  # noqa: E402
from tools.dev import runtime_table as tool  # noqa: E402

ROWS = read_csv(tool.DOCS / 'runtimes.csv')


def test_the_page_has_the_table():
    begin, end = tool.MARKS
    text = (tool.DOCS / 'export.md').read_text()
    assert text.partition(begin)[2].partition(end)[0] == tool.table(ROWS)


@pytest.mark.parametrize(
    'row', ROWS, ids=lambda row: f'{row["model"]} {row["runtime"]}'
)
def test_a_cell_is_a_figure_or_a_reason(row):
    if not re.fullmatch(r'\d\.\de[+-]\d\d', row['difference']):
        assert len(row['difference']) > 20 and not row['ms']
        return
    assert row['metric'] and re.fullmatch(r'\d+\.\d \(\d+\.\d\)', row['ms'])
    if 'int8' not in row['runtime']:
        assert float(row['difference']) < 1e-4
