"""The table of exported backbones, and that our page shows it."""

from mmattn.models import backbones
from tools.benchmark.measure import read_csv
from tools.dev import export_table as tool

ROWS = read_csv(tool.DOCS / 'export.csv')


def test_every_backbone_is_exported_and_equals_pytorch():
    found = {(row['model'], int(row['height']), int(row['width'])) for row in ROWS}
    sizes = {name: tool.SIZES[name in tool.LARGE :] for name in tool.CASES}
    assert found == {(name, *size) for name in sizes for size in sizes[name]}
    assert {name.split()[0] for name in tool.CASES} == set(backbones.__all__)
    for row in ROWS:
        assert not row['refused']
        ways = 'torch.export', 'pt2', 'ONNX Runtime'
        assert all(float(row[way]) < 1e-4 for way in ways), row
        assert row['model'] in tool.LARGE or float(row['torch.export float64']) < 1e-11


def test_page_has_the_table():
    before, _, rest = (tool.DOCS / 'export.md').read_text().partition(tool.MARKS[0])
    assert before and rest.partition(tool.MARKS[1])[0] == tool.tables(ROWS)


def test_a_case_is_the_model_of_its_name():
    model = tool.built('MaiT xtiny, soft').backbone
    assert isinstance(model, backbones.MaiT)
    assert tool.built('LiSANet isotropic').backbone.out_indices == (0,)


def test_refusals_are_listed_with_their_reason():
    row = dict.fromkeys(tool.FIELDS, '1') | {'model': 'IViT nano', 'refused': ''}
    dynamic = {'dynamic batch': 'yes', 'dynamic size': 'no `guard` <= 3'}
    text = tool.tables([row | dynamic])
    assert '| 1 | yes | refused |' in text
    assert '- IViT nano at 1 x 1, dynamic size: no  guard   = 3\n' in text
