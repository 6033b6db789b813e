"""Check what holds for every operator, by discovery."""

import re
from pathlib import Path

import pytest
import torch

from mmattn import ops
from mmattn.ops.common.operator import OPERATORS

PAGE = Path(__file__).parents[2] / 'docs/operators/index.md'
every_operator = pytest.mark.parametrize('operator', OPERATORS.values(), ids=OPERATORS)


@every_operator
def test_example(operator):
    tensors, settings = operator.example('cpu', torch.float32)
    arguments = *tensors, *settings.values(), 'torch'
    torch.library.opcheck(operator.forward.default, arguments)


def test_the_page_and_the_package_list_every_operator_and_its_backends():
    rows = re.findall(r'^\| \[(\w+)\].*\| ([^|]*) \|$', PAGE.read_text(), flags=re.M)
    listed = {name: re.findall(r'`(\w+)`', backends) for name, backends in rows}
    assert listed == {
        name: [*operator.backends] for name, operator in OPERATORS.items()
    }
    assert set(OPERATORS) <= set(ops.__all__)
    assert all(Path(ops.__file__).parent.joinpath(name).is_dir() for name in OPERATORS)
