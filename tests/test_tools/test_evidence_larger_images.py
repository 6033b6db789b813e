"""tools/evidence/larger_images.py: one property of larger images at a time."""

import pytest
import torch
import torch.nn.functional as F

for name in ('cv2', 'mmpretrain'):
    pytest.importorskip(name)

from mmattn.analysis.flops import build  # noqa: E402
from tools.evidence import larger_images  # noqa: E402
from tools.evidence.claim import Variant  # noqa: E402
from tools.evidence.larger_images import sample  # noqa: E402


@pytest.fixture
def images():
    return torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def classifier(attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    options = {'model.backbone.attention': attention, 'model.backbone.landmarks': 4}
    options['model.backbone.arch.depth'] = 1
    variant = Variant('configs/evidence/vit_n_fashion_mnist.py', options)
    return build(variant.resolved, 'cpu')


def test_samples_are_the_images_or_enlarged_ones(images):
    assert torch.allclose(sample(images, 7, 1.0, 4), images, atol=1e-5)
    enlarged = F.interpolate(images, (44, 44), mode='bilinear')
    assert torch.allclose(sample(images, 11, 7 / 11, 4), enlarged, atol=1e-5)


def test_the_number_of_patches_and_their_contents_vary_apart():
    ramp = (torch.arange(28.0) + 0.5).expand(1, 1, 28, 28)  # columns know their place
    for patches, spacing in ((9, 1.0), (7, 0.5)):
        out = sample(ramp, patches, spacing, 4)
        columns = out[0, 0, 0].view(patches, 4)
        inner = columns[1:-1]  # those at the rim may be cut
        assert torch.allclose(inner.diff(dim=1), torch.tensor(spacing), atol=1e-4)
        centers = (torch.arange(patches) + 0.5) * 28 / patches
        assert torch.allclose(inner.mean(1), centers[1:-1], atol=1e-4)
        assert torch.allclose(out[0, 0], out[0, 0, :1].expand_as(out[0, 0]), atol=1e-4)


def test_positions_continue_around_the_old_ones():
    positions = torch.rand(7, 7, 3)
    wide = larger_images.surround(positions, 2)
    assert wide.shape == (11, 11, 3)
    assert torch.equal(wide[2:-2, 2:-2], positions)
    assert torch.equal(wide[0, 5], positions[0, 3])
    assert torch.equal(wide[-1, -1], positions[-1, -1])
