"""Statistics of attention maps: heads, layers, neighbors; in maps and in backbones."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.analysis import (
    attention_locality,
    attention_maps,
    head_diversity,
    head_similarity,
    head_variance,
    layer_similarity,
    locality_score,
    map_similarity,
    map_variance,
    similarity_among,
)
from mmattn.models import HMaiT, MaiT, ViT
from tools.benchmark.tolerances import assert_close

ARCH = dict(embed_dims=24, depth=3, num_heads=3)


def random_maps(*shape):
    torch.manual_seed(0)
    return torch.randn(shape, dtype=torch.float64).mul(2).softmax(-1)


def test_heads_that_look_at_other_tokens():
    """Half of the 16 entries are 1 in one head and 0 in the other."""
    eye = torch.eye(4)
    heads = torch.stack([eye, eye.roll(1, -1)])
    assert head_variance(heads).item() == 8 / 16 * 0.25
    assert map_variance(heads).tolist() == 2 * [1 / 4 - 1 / 16]
    assert head_similarity(heads).tolist() == [[1, 0], [0, 1]]


def test_statistics_are_those_of_pairs():
    """A variance is half the mean squared difference of all pairs."""
    maps = random_maps(3, 5, 5)
    heads = [head.numpy().ravel() for head in maps]
    squares = [np.mean((a - b) ** 2) for a in heads for b in heads]
    assert head_variance(maps).item() == pytest.approx(np.mean(squares) / 2)
    entries = [np.mean((h[:, None] - h[None]) ** 2) / 2 for h in heads]
    assert map_variance(maps).tolist() == pytest.approx(entries)
    for a, b in combinations(range(3), 2):
        norms = math.hypot(*heads[a]) * math.hypot(*heads[b])
        cosine = sum(x * y for x, y in zip(heads[a], heads[b], strict=True)) / norms
        assert head_similarity(maps)[a, b].item() == pytest.approx(cosine)


def test_similarity_is_the_mean_cosine_of_rows():
    maps = random_maps(4, 2, 6, 6)
    cosines = F.cosine_similarity(maps[:, None], maps[None], dim=-1)
    similarity = map_similarity(maps)
    assert_close('similarity', cosines.mean(-1), similarity)
    assert (similarity > 0).all() and (similarity < 1 + 1e-9).all()


def diversity_of(maps):
    """Return what `head_diversity` has of each layer, from its maps."""
    pairs = [*combinations(range(3), 2)]
    return [
        [
            head_variance(m).item(),
            map_variance(m).mean().item(),
            sum(head_similarity(m)[a, b].item() for a, b in pairs) / 3,
        ]
        for m in maps
    ]


def diversity(backbone, images):
    found = head_diversity(backbone, images)
    assert [layer.layer for layer in found] == [f'blocks.{i}.attn' for i in range(3)]
    assert {layer.num_heads for layer in found} == {3}
    return [[h.head_variance, h.map_variance, h.similarity] for h in found]


def between_layers(maps):
    cosines = [[F.cosine_similarity(a, b, dim=-1).mean(-1) for a in maps] for b in maps]
    return torch.stack([torch.stack(row) for row in cosines])


def of_neighbors(maps):
    return torch.stack([locality_score(m, SQUARES[m.shape[-1]]) for m in maps])


SQUARES = {1 + 16: (4, 4), 1 + 15: (3, 5)}  # grids by the number of tokens
MASKED = dict(masking='sch1', img_size=64)
INTERACTION = dict(attention='mhsa_interaction')
LANDMARKS = dict(attention='imhsa', landmarks=2)
STATISTICS = {
    'diversity': (ViT, INTERACTION, diversity, diversity_of),
    'diversity of landmarks': (ViT, LANDMARKS, diversity, diversity_of),
    'similarity': (MaiT, MASKED, layer_similarity, between_layers),
    'locality': (MaiT, MASKED, attention_locality, of_neighbors),
}


@pytest.mark.parametrize(
    'kind, settings, measure, of_maps', STATISTICS.values(), ids=STATISTICS
)
def test_statistics_of_a_backbone_are_averaged_over_images(
    kind, settings, measure, of_maps
):
    torch.manual_seed(0)
    backbone = kind(ARCH, **settings).double().eval()
    for block in backbone.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.7)
    images = [torch.randn(3, *s, dtype=torch.float64) for s in ((64, 64), (33, 80))]
    expected = []
    for image in images:
        maps = attention_maps(backbone, image[None], effective=True)
        expected.append(of_maps([found.weights for found in maps]))
    expected = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in expected])
    measured = torch.as_tensor(measure(backbone, images), dtype=torch.float64)
    assert_close('mean', expected.mean(0), measured)
    assert (expected[0] - expected[1]).abs().max() > 1e-3


def test_a_single_head_has_no_similarity():
    backbone = ViT(dict(ARCH, num_heads=1), 'mhsa').eval()
    layer, *_ = head_diversity(backbone, torch.randn(1, 3, 32, 32))
    assert math.isnan(layer.similarity) and layer.head_variance == 0
    assert layer.map_variance > 0


@pytest.mark.parametrize('measure', [head_diversity, layer_similarity])
def test_no_images_are_refused(measure):
    with pytest.raises(ValueError, match='at least one image'):
        measure(MaiT(ARCH, img_size=64), [])


def test_layers_that_cannot_be_compared_are_refused():
    for layers in ([], [3]):
        with pytest.raises(ValueError, match='must be two or more'):
            similarity_among(torch.ones(5, 5, 2), layers)
    with pytest.raises(ValueError, match='must be alike, got .* heads, .* tokens; '):
        layer_similarity(HMaiT('nano').eval(), torch.randn(1, 3, 64, 64))
