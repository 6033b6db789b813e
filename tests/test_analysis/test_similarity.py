"""Cross-layer similarity: against loops, in known cases, and in whole backbones."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.analysis import (
    attention_maps,
    layer_similarity,
    map_similarity,
    similarity_among,
)
from mmattn.models import HMaiT, MaiT
from tools.benchmark.tolerances import assert_close

ARCH = dict(embed_dims=24, depth=3, num_heads=3)


def random_maps(L=4, M=2, N=6):
    return torch.randn(L, M, N, N, dtype=torch.float64).mul(2).softmax(-1)


def test_similarity_is_the_mean_cosine_of_rows():
    L, M, N = 4, 2, 6
    maps = random_maps(L, M, N)
    expected = torch.empty(L, L, M, dtype=torch.float64)
    for i in range(L):
        for j in range(L):
            for h in range(M):
                cosines = [
                    torch.dot(maps[i, h, t], maps[j, h, t])
                    / (maps[i, h, t].norm() * maps[j, h, t].norm())
                    for t in range(N)
                ]
                expected[i, j, h] = torch.stack(cosines).mean()
    similarity = map_similarity(maps)
    assert_close('similarity', expected, similarity)
    assert_close('transposed', similarity.transpose(0, 1), similarity)
    assert (similarity > 0).all() and (similarity < 1 + 1e-9).all()


def test_similarity_of_a_backbone_is_averaged_over_images():
    torch.manual_seed(0)
    backbone = MaiT(ARCH, masking='sch1', img_size=64).double().eval()
    for block in backbone.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.7)
    images = [torch.randn(3, *s, dtype=torch.float64) for s in ((64, 64), (33, 80))]
    similarity = layer_similarity(backbone, images)
    assert similarity.shape == (3, 3, 3)
    alone = []
    for image in images:
        rows = [found.weights for found in attention_maps(backbone, image[None])]
        cosines = F.cosine_similarity(rows[0], rows[2], dim=-1)
        alone.append(cosines.mean(-1))
    assert_close('layers 0 and 2', torch.stack(alone).mean(0), similarity[0, 2])
    assert (alone[0] - alone[1]).abs().max() > 1e-3


def test_errors():
    for layers in ([], [3]):
        with pytest.raises(ValueError, match='must be two or more'):
            similarity_among(torch.ones(5, 5, 2), layers)
    with pytest.raises(ValueError, match='must be alike, got .* heads, .* tokens; '):
        layer_similarity(HMaiT('nano').eval(), torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match='at least one image'):
        layer_similarity(MaiT(ARCH, img_size=64), [])
