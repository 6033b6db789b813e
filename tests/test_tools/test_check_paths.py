import pytest

from tools.dev import check_paths


def outside(*parts: str) -> str:
    return '/'.join(parts)  # joined at run time, or this file would fail the check


@pytest.mark.parametrize(
    'line',
    [
        "open('" + outside('', 'home', 'me', 'x.txt') + "')",
        "_base_ = '" + outside('..', '..', '..', 'elsewhere', 'base.py') + "'",
    ],
    ids=['absolute', 'relative'],
)
def test_outside_is_found(line):
    file = check_paths.ROOT / 'configs' / 'mask_rcnn' / 'some.py'
    assert check_paths.outside_paths(file, line)


@pytest.mark.parametrize(
    'line',
    ["_base_ = '../_base_/models/a.py'", 'https://example.org/home/x', 'data/hela/'],
)
def test_inside_passes(line):
    file = check_paths.ROOT / 'configs' / 'mask_rcnn' / 'some.py'
    assert not check_paths.outside_paths(file, line)
