"""Padding of images to whole patches, and the grid of an image at a stride."""

import pytest
import torch

from mmattn.models.layers.patches import grid_of, pad_to_patches


@pytest.mark.parametrize(
    'shape, padded',
    [((32, 48), (32, 48)), ((33, 47), (48, 48)), ((1, 17), (16, 32))],
    ids=str,
)
def test_zeros_are_added_right_and_below(shape, padded):
    x = torch.rand(2, 3, *shape) + 1
    out = pad_to_patches(x, 16)
    assert out.shape == (2, 3, *padded)
    assert torch.equal(out[..., : shape[0], : shape[1]], x)
    assert out.count_nonzero() == x.numel()
    assert grid_of(shape, 16) == tuple(side // 16 for side in padded)


def test_one_side_is_a_square():
    assert grid_of(65, 32) == (3, 3)
