"""Normalization inside the graph, also of padding."""

import torch
from torch import nn

from mmattn.export.graphs.normalized import Normalized

MEAN, STD = (10.0, 20.0, 30.0), (2.0, 4.0, 8.0)


class Echo(nn.Module):
    """Return what a detector's graph gets."""

    task, output_names = 'detection', ('image', 'image_size')

    def __init__(self, *input_names):
        super().__init__()
        self.input_names = input_names

    def forward(self, *inputs):
        return inputs


def normalized(image):
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (image - mean) / std


def test_padding_has_its_value_after_normalization():
    graph = Normalized(Echo('image', 'image_size'), MEAN, STD, pad_value=0.5)
    image = torch.randint(0, 256, (2, 3, 4, 6), dtype=torch.uint8)
    sizes = torch.tensor([[3, 6], [4, 2]])
    found, given = graph(image, sizes)
    assert torch.equal(given, sizes)
    expected = normalized(image)
    expected[0, :, 3:] = 0.5
    expected[1, :, :, 2:] = 0.5
    torch.testing.assert_close(found, expected)
