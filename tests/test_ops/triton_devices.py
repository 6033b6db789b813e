"""Devices for tests of Triton kernels: a GPU, and Triton's interpreter."""

import pytest
from interpreter import slowly_interpreted
from operator_cases import on_gpu

every_device = pytest.mark.parametrize(
    'device',
    [pytest.param('cpu', marks=slowly_interpreted), pytest.param('cuda', marks=on_gpu)],
)


def every_triton(arguments: str, cases: dict[str, object]):
    """Parametrize over cases and devices.

    Args:
        arguments: name of the argument, or names with commas between them.
        cases: arguments by their names in the test's id.
    """
    several = ',' in arguments
    rows = []
    for name, case in cases.items():
        values = case if several else (case,)
        for device, marks in (('cpu', slowly_interpreted), ('cuda', on_gpu)):
            row = pytest.param(*values, device, marks=marks, id=f'{name}, {device}')
            rows.append(row)
    return pytest.mark.parametrize(f'{arguments}, device', rows)
