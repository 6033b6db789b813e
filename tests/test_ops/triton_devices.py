"""Devices for tests of Triton kernels: a GPU, and Triton's interpreter."""

import pytest
from interpreter import interpreted
from operator_cases import on_gpu

every_device = pytest.mark.parametrize(
    'device',
    [pytest.param('cpu', marks=interpreted), pytest.param('cuda', marks=on_gpu)],
)


def every_triton(arguments: str, cases: dict[str, object], *rare: str):
    """Parametrize over cases and devices.

    Args:
        arguments: name of the argument, or names with commas between them.
        cases: arguments by their names in the test's id.
        rare: names of cases that only the slow run interprets.
    """
    assert cases.keys() >= set(rare)
    several = ',' in arguments
    rows = []
    for name, case in cases.items():
        values = case if several else (case,)
        marks = [interpreted, pytest.mark.slow] if name in rare else interpreted
        rows.append(pytest.param(*values, 'cpu', marks=marks, id=f'{name}, cpu'))
        rows.append(pytest.param(*values, 'cuda', marks=on_gpu, id=f'{name}, cuda'))
    return pytest.mark.parametrize(f'{arguments}, device', rows)
