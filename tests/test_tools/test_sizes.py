"""The tool that measures what the sizes of COCO and ImageNet cost."""

import json

import pytest

from tools.benchmark import sizes


def test_rows_are_measured_apart_and_fill_the_page(tmp_path, monkeypatch, capsys):
    (tmp_path / 'sizes.md').write_text('before\n' + ''.join(sizes.MARKS) + 'after\n')
    monkeypatch.setattr(sizes, 'LABELS', 40)
    sizes.main(['--row', 'labels'])
    row = json.loads(capsys.readouterr().out)
    assert row['result'] == '40 labels counted' and row['seconds'] >= 0
    monkeypatch.setattr(sizes, 'measure_apart', lambda name, at: row | dict(row=name))
    options = ['--docs', str(tmp_path)]
    sizes.main(['labels', *options])
    sizes.main(['check', *options])  # the other row stays
    page = (tmp_path / 'sizes.md').read_text()
    assert page.startswith('before') and page.endswith('after\n')
    assert page.count('40 labels counted') == 2
    assert page.index('Check the data sets') < page.index('Count 50,000 labels')
    sizes.main(['--list'])
    assert all(name in capsys.readouterr().out for name in ['video'])
    with pytest.raises(SystemExit):
        sizes.main(['other'])
