"""The least size for which a file is valid."""

import pytest
import torch
from torch import nn

from mmattn.export.verification import least_size, takes_the_same_branches


@pytest.mark.parametrize('limit', [1, 33, 57, 100])
def test_least_size(limit):
    tried = []

    def is_valid(height, width):
        tried.append((height, width))
        return height >= min(limit, 80) and width >= limit

    expected = [min(max(limit, 32), 80), max(limit, 32)]
    assert least_size((80, 100), is_valid) == expected
    assert len(tried) < 9
    assert least_size((20, 30), None) == [20, 30]


class Branch(nn.Module):
    """Compute something else where the map of stride 32 is high or wide."""

    def forward(self, image, image_size):
        H, W = ((side + 31) // 32 for side in image.shape[2:])
        return image * (2 if H >= 3 else 3) + (5 if W >= 4 else 6)


def test_branches():
    inputs = torch.zeros(2, 3, 100, 130), torch.zeros(2, 2, dtype=torch.long)
    sides = dict.fromkeys((2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(Branch(), inputs, dynamic_shapes=(sides, None))
    takes_them = takes_the_same_branches(program, inputs)
    sizes = (65, 97), (64, 97), (65, 96), (999, 999)
    assert [takes_them(*size) for size in sizes] == [True, False, False, True]
    assert least_size((100, 130), takes_them) == [97, 97]
