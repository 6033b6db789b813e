"""The table of exported backbones, and the tool that writes it."""

import pytest
import torch

pytest.importorskip('onnxruntime')

from mmattn.export.graphs import GRAPHS
from mmattn.models import backbones
from tools.dev import export_table as tool
from tools.dev.readme_tables import replace_between

ROWS = tool.read(tool.DOCS / 'export.csv')
WAYS = 'torch.export', 'pt2', 'ONNX Runtime'


def test_every_backbone_is_exported_at_an_odd_size():
    found = {(row['model'], int(row['height']), int(row['width'])) for row in ROWS}
    expected = {(name, *size) for name in tool.CASES for size in tool.sizes_of(name)}
    assert found == expected
    kinds = {case['type'] for case in tool.CASES.values()}
    assert kinds == set(backbones.__all__)


@pytest.mark.parametrize('row', ROWS, ids=lambda row: f'{row["model"]} {row["height"]}')
def test_exported_backbones_equal_pytorch(row):
    assert not row['refused'] and all(float(row[way]) < 1e-4 for way in WAYS)
    assert row['model'] in tool.LARGE or float(row['torch.export float64']) < 1e-11


def test_page_has_the_table():
    before, _, rest = (tool.DOCS / 'export.md').read_text().partition(tool.MARKS[0])
    assert before and rest.partition(tool.MARKS[1])[0] == tool.tables(ROWS)


def test_page_lists_the_models():
    page = (tool.DOCS / 'export.md').read_text()
    models = {model.rpartition('.')[2] for model in GRAPHS}
    assert {name for name in models if f'`{name}`' not in page} == set()


@pytest.mark.parametrize(
    'text, expected',
    [('', ''), ('yes', 'yes'), ('from 32 x 57', 'from 32 x 57')]
    + [(text, 'refused') for text in ('yes?', 'torch.export: from 3 x 4', '1.0e-06')],
)
def test_cells(text, expected):
    assert tool.cell(text) == expected


def test_refusals_are_listed_with_their_reason():
    row = dict.fromkeys(tool.FIELDS, '1') | {'model': 'IViT nano', 'refused': ''}
    dynamic = {'dynamic batch': 'yes', 'dynamic size': 'no `guard` <= 3'}
    text = tool.tables([row | dynamic])
    assert '| IViT nano | yes | refused |' in text
    assert '- IViT nano at 1 x 1, dynamic size: no  guard   = 3\n' in text


def test_differences_are_relative_to_the_largest_value():
    maps = [torch.full((1, 2), 8.0), torch.full((2, 2), 0.5)]

    def run(image):
        return [maps[0] + image, maps[1]]

    difference = float(tool.largest(run, maps, torch.tensor(0.5)))
    assert difference == pytest.approx(1 / 16, rel=0.1)
    assert float(tool.largest(run, maps, torch.zeros(()))) == 0


def test_a_page_without_marks_is_not_changed(tmp_path):
    page = tmp_path / 'page.md'
    for text in ('no marks', '<begin> no end', 'no begin <end>'):
        page.write_text(text)
        with pytest.raises(ValueError, match="must have the marks '<begin>' and"):
            replace_between(page, '<begin>', '<end>', 'new')
        assert page.read_text() == text
    page.write_text('a <begin> old <end> b <end>')
    replace_between(page, '<begin>', '<end>', ' new ')
    assert page.read_text() == 'a <begin> new <end> b <end>'
