"""The matrix of releases: its table, and pages that name the oldest one."""

import json
import re

from tools.dev import matrix


def test_pages_and_the_extension_name_the_same_floor():
    floor = matrix.floor()
    project = (matrix.ROOT / 'pyproject.toml').read_text()
    python = re.search('requires-python = ">=(.*)"', project)[1]
    readme = (matrix.ROOT / 'README.md').read_text()
    assert f'requires Python {python} and PyTorch {floor} or newer' in readme
    page = (matrix.ROOT / 'docs/install.md').read_text()
    assert f'| PyTorch | {floor} and newer |' in page
    assert f'| Python | {python} and newer |' in page
    abi = ', '.join(floor.split('.'))
    assert f'STABLE_ABI = ({abi})' in (matrix.ROOT / 'setup.py').read_text()
    assert min(version for _, version in matrix.ROWS.values()) == python


def test_the_table_has_the_rows_that_have_run(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, 'MATRIX', tmp_path)
    result = dict(torch='2.10.0+cu128', triton='3.6.0', torchvision='0.25.0')
    counts = dict(tests=1200, failures=1, errors=2, skipped=97, commit='abc')
    (tmp_path / 'floor.json').write_text(json.dumps(result | counts | {'Python': '3'}))
    last = matrix.table().splitlines()[-1]
    assert last == '| 2.10.0 | 3.6.0 | 0.25.0 | 3 | 1,100 | 3 | abc |'
    assert len(matrix.table().splitlines()) == 3


def test_an_interpreter_that_is_not_there_is_replaced(monkeypatch, capsys):
    monkeypatch.setattr(matrix.shutil, 'which', lambda name: None)
    assert matrix.interpreter('3.99') == matrix.sys.executable
    assert 'python3.99 is not at hand' in capsys.readouterr().out
