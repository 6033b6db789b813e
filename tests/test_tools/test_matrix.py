"""The oldest PyTorch that pages and the extension name."""

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
