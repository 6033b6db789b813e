"""projects/evidence: measures of a network that do not look at its accuracy."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.models import ViT
from projects.evidence import mechanisms


def vit(attention: str = 'mhsa', **options) -> ViT:
    torch.manual_seed(0)
    arch = dict(embed_dims=8, depth=2, num_heads=2)
    settings = dict(in_channels=1, patch_size=4, img_size=20)
    return ViT(arch, attention=attention, **settings, **options).eval()


def test_the_effective_rank_counts_directions():
    q, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.double))
    values = torch.tensor([[2.0] * 3 + [0.0] * 3, [1.0] + [0.0] * 5, [1.0] * 6])
    matrices = q @ torch.diag_embed(values.double()) @ q.T.flip(0)
    found = mechanisms.effective_rank(matrices)
    assert found.tolist() == pytest.approx([3, 1, 6], rel=1e-6)
    halves = torch.diag(torch.tensor([0.5, 0.25, 0.25]))
    assert mechanisms.effective_rank(halves).item() == pytest.approx(2**1.5)


def test_the_rank_of_landmarks_is_at_most_their_number():
    images = torch.randn(2, 1, 20, 20)
    settings = dict(interact_expand=None, local_kernel=None, gate=False, landmarks=2)
    landmarks = mechanisms.rank(vit('imhsa', **settings), images)['rank']
    assert 1 <= landmarks <= 4
    uniform = vit()
    for block in uniform.blocks:
        nn.init.zeros_(block.attn.qkv.weight)
    assert mechanisms.rank(uniform, images)['rank'] == pytest.approx(1, abs=1e-4)


class Blur(nn.Module):
    """Patches of 4 x 4 pixels, blurred over `side` patches around each."""

    def __init__(self, side: int):
        super().__init__()
        self.side = side

    def forward(self, x):
        tokens = F.avg_pool2d(x, 4)
        kernel = torch.ones(1, 1, self.side, self.side)
        return (F.conv2d(tokens, kernel, padding=self.side // 2),)


def test_the_reach_of_a_blur_is_that_of_its_kernel():
    images = torch.randn(3, 1, 20, 20)
    for side in (3, 5):
        pixels = (torch.arange(4 * side) + 0.5 - 2 * side) / 20
        y, x = torch.meshgrid(pixels, pixels, indexing='ij')
        squared = (y**2 + x**2)[torch.maximum(y.abs(), x.abs()) > 0.1]
        found = mechanisms.reach(Blur(side), images)['reach']
        assert found == pytest.approx(squared.mean().sqrt().item(), rel=1e-5)


def test_the_reach_follows_the_masks_and_leaves_no_gradients():
    images = torch.randn(2, 1, 20, 20)
    everywhere = mechanisms.reach(vit('masked', masking='none'), images)['reach']
    nearby = vit('masked', masking=[2, 2], mask_fill='neg_inf')
    assert mechanisms.reach(nearby, images)['reach'] < everywhere - 0.02
    assert all(parameter.grad is None for parameter in nearby.parameters())


def test_dense_attention_grows_faster_than_landmarks():
    images = torch.zeros(1, 1, 20, 20)
    settings = dict(interact_expand=None, local_kernel=None, gate=False, landmarks=2)
    dense = mechanisms.growth(vit(), images)['growth']
    linear = mechanisms.growth(vit('imhsa', **settings), images)['growth']
    assert linear == pytest.approx(4, abs=0.05) and 8 < dense < 16


def test_alike_heads_have_no_variance_and_a_similarity_of_one():
    images = torch.randn(2, 1, 20, 20)
    found = mechanisms.diversity(vit(), images)
    assert found['head_variance'] > 0 and found['similarity'] < 1
    alike = vit()
    for block in alike.blocks:
        nn.init.zeros_(block.attn.qkv.weight)
    found = mechanisms.diversity(alike, images)
    assert found['head_variance'] == pytest.approx(0, abs=1e-12)
    assert found['similarity'] == pytest.approx(1)
