"""tools/evidence/larger_images.py: one property of larger images at a time."""

import pytest
import torch
import torch.nn.functional as F

for name in ('cv2', 'mmpretrain'):
    pytest.importorskip(name)

from mmattn.analysis.flops import build  # noqa: E402
from tools.evidence import larger_images  # noqa: E402
from tools.evidence.claim import Variant  # noqa: E402
from tools.evidence.larger_images import Labeled, sample  # noqa: E402


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


def test_a_rim_of_the_map_is_left_out(images):
    model = classifier('mhsa')
    labels = torch.zeros(len(images), dtype=torch.long)
    model.backbone.forward = lambda x: (F.pad(torch.ones(len(x), 48, 3, 3), (2,) * 4),)
    model.neck.forward = lambda outs: (outs[0].flatten(2),)
    seen = []
    model.head.forward = lambda outs: seen.append(outs[0]) or torch.eye(10)[[0] * 20]
    assert larger_images.accuracy(model, images, labels, rim=2, batch=20) == 100
    assert all((maps == 1).all() and maps.shape[-1] == 9 for maps in seen)


def test_positions_continue_around_the_old_ones():
    positions = torch.rand(7, 7, 3)
    wide = larger_images.surround(positions, 2)
    assert wide.shape == (11, 11, 3)
    assert torch.equal(wide[2:-2, 2:-2], positions)
    assert torch.equal(wide[0, 5], positions[0, 3])
    assert torch.equal(wide[-1, -1], positions[-1, -1])


def test_a_black_surrounding_changes_nothing_without_attention(images):
    model = classifier('mhsa')
    for block in model.backbone.blocks:
        torch.nn.init.zeros_(block.attn.proj.weight)
    train = Labeled(images[:32], torch.arange(32) % 10)
    with torch.no_grad():
        labels = model.head(model.extract_feat(images)).argmax(1)
    found = larger_images.accuracies(model, Labeled(images, labels), train)
    assert found['original'] == found['surrounded'] == 100
    assert 'more landmarks' not in found


def test_the_surrounding_is_black_and_left_out(images, monkeypatch):
    seen = []

    def accuracy(model, inputs, labels, rim=0):
        seen.append((model, inputs, rim))
        return 0.0

    monkeypatch.setattr(larger_images, 'accuracy', accuracy)
    monkeypatch.setattr(larger_images, 'tuned', lambda model, data: model)
    model = classifier('mhsa')
    data = Labeled(images - 0.5, torch.zeros(len(images), dtype=torch.long))
    larger_images.accuracies(model, data, data)
    (network, inputs, _), *others = [each for each in seen if each[2] == 2]
    assert not others and torch.equal(inputs[..., 8:-8, 8:-8], data.images)
    assert (inputs[..., :8, :] == data.images.min()).all()
    middle = network.backbone.stem.pos_embed.view(11, 11, -1)[2:-2, 2:-2]
    assert torch.equal(middle, model.backbone.stem.pos_embed.view(7, 7, -1))


def test_landmarks_matter_and_the_model_stays(images):
    model = classifier('imhsa')
    before = {key: value.clone() for key, value in model.state_dict().items()}
    labels = torch.arange(len(images)) % 10
    data = Labeled(images, labels)
    more = larger_images.with_landmarks(model, 6)
    large = sample(images, 11, 7 / 11, 4)
    with torch.no_grad():
        difference = more.backbone(large)[0] - model.backbone(large)[0]
    assert difference.abs().max() > 0
    found = larger_images.accuracies(model, data, data)
    assert len(found) == 10 and all(0 <= value <= 100 for value in found.values())
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_tuning_lowers_the_loss(images, monkeypatch):
    monkeypatch.setattr(larger_images, 'BATCH', 4)
    model = classifier('mhsa').eval()
    data = Labeled(images, torch.arange(len(images)) % 2)
    network = larger_images.tuned(model, data).eval()

    def loss(model):
        with torch.no_grad():
            return F.cross_entropy(model.head(model.extract_feat(images)), data.labels)

    assert loss(network) < loss(model) - 0.2
