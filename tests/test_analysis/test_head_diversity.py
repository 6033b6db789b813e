"""Variance and similarity of heads: known maps, loops, and whole backbones."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from mmattn.analysis import (
    attention_maps,
    head_diversity,
    head_similarity,
    head_variance,
    map_variance,
)
from mmattn.models import ViT

ARCH = dict(embed_dims=24, depth=2, num_heads=3)


def random_maps(M=3, N=5):
    torch.manual_seed(0)
    return torch.randn(M, N, N, dtype=torch.float64).mul(2).softmax(-1)


def test_heads_that_look_at_other_tokens():
    """Half of the 16 entries are 1 in one head and 0 in the other."""
    eye = torch.eye(4)
    heads = torch.stack([eye, eye.roll(1, -1)])
    assert head_variance(heads).item() == 8 / 16 * 0.25
    assert map_variance(heads).tolist() == 2 * [1 / 4 - 1 / 16]
    assert head_similarity(heads).tolist() == [[1, 0], [0, 1]]


def test_statistics_are_those_of_pairs():
    """A variance is half the mean squared difference of all pairs."""
    maps = random_maps()
    heads = [head.numpy().ravel() for head in maps]
    squares = [np.mean((a - b) ** 2) for a in heads for b in heads]
    assert head_variance(maps).item() == pytest.approx(np.mean(squares) / 2)
    entries = [np.mean((h[:, None] - h[None]) ** 2) / 2 for h in heads]
    assert map_variance(maps).tolist() == pytest.approx(entries)
    for a, b in combinations(range(3), 2):
        norms = math.hypot(*heads[a]) * math.hypot(*heads[b])
        cosine = sum(x * y for x, y in zip(heads[a], heads[b], strict=True)) / norms
        assert head_similarity(maps)[a, b].item() == pytest.approx(cosine)


def build(attention, **kwargs):
    torch.manual_seed(0)
    backbone = ViT(ARCH, attention, landmarks=2, **kwargs).double().eval()
    for block in backbone.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.7)
    return backbone


@pytest.mark.parametrize('attention', ['mhsa_interaction', 'imhsa'])
def test_layers_are_averaged_over_images(attention):
    backbone = build(attention)
    images = [torch.randn(3, *s, dtype=torch.float64) for s in ((64, 64), (33, 80))]
    expected = []
    for image in images:
        maps = [
            found.weights
            for found in attention_maps(backbone, image[None], effective=True)
        ]
        pairs = [
            sum(head_similarity(m)[a, b] for a, b in combinations(range(3), 2)) / 3
            for m in maps
        ]
        expected.append(
            [
                [head_variance(m).item(), map_variance(m).mean().item(), pair.item()]
                for m, pair in zip(maps, pairs, strict=True)
            ]
        )
    found = head_diversity(backbone, images)
    assert [layer.layer for layer in found] == [f'blocks.{i}.attn' for i in (0, 1)]
    assert {layer.num_heads for layer in found} == {3}
    measured = [[h.head_variance, h.map_variance, h.similarity] for h in found]
    np.testing.assert_allclose(measured, np.mean(expected, axis=0), rtol=1e-9)
    assert np.abs(np.subtract(*expected)).min() > 0


def test_a_single_head_has_no_similarity():
    backbone = ViT(dict(ARCH, num_heads=1), 'mhsa').eval()
    (layer, _) = head_diversity(backbone, torch.randn(1, 3, 32, 32))
    assert math.isnan(layer.similarity) and layer.head_variance == 0
    assert layer.map_variance > 0


def test_no_images_and_too_many_tokens_are_refused():
    backbone = ViT(ARCH, 'mhsa')
    with pytest.raises(ValueError, match='at least one image'):
        head_diversity(backbone, [])
    with pytest.raises(ValueError, match='at most 4096 tokens, got 4160 on a .* 64x65'):
        head_diversity(backbone, torch.randn(1, 3, 1024, 1040))
