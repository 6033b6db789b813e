"""Our backbones in torchvision's detectors."""

import pytest
import torch
from torchvision.models.detection import MaskRCNN

import mmattn


def test_mask_rcnn_trains_a_step_and_predicts():
    torch.manual_seed(0)
    backbone = mmattn.torchvision_fpn(mmattn.IViT('nano'), out_channels=32)
    model = MaskRCNN(backbone, num_classes=2, min_size=64, max_size=64)
    images = [torch.rand(3, 64, 64), torch.rand(3, 48, 64)]
    mask = torch.zeros(1, 64, 64, dtype=torch.uint8)
    mask[:, 8:40, 8:40] = 1
    given = dict(boxes=torch.tensor([[8.0, 8, 40, 40]]), labels=torch.tensor([1]))
    targets = [given | dict(masks=mask[:, : image.shape[1]]) for image in images]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = model.train()(images, targets)
    assert 'loss_mask' in losses
    sum(losses.values()).backward()
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(before)
    with torch.no_grad():
        results = model.eval()(images)
    assert [r['masks'].shape[2:] for r in results] == [(64, 64), (48, 64)]


def test_maps_have_names_and_channels():
    backbone = mmattn.PVTv2('b0', out_indices=(1, 2, 3))
    pyramid = mmattn.torchvision_fpn(backbone, 24)
    maps = pyramid(torch.rand(1, 3, 64, 64))
    assert {name: m.shape[1:] for name, m in maps.items()} == {
        '0': (24, 8, 8),
        '1': (24, 4, 4),
        '2': (24, 2, 2),
        'pool': (24, 1, 1),
    }
    assert pyramid.out_channels == 24


@pytest.mark.parametrize('name, maps', [('vit_tiny', (0, 1)), ('ivit_nano', 3)])
def test_a_pyramid_needs_several_strides(name, maps):
    with torch.device('meta'), pytest.raises(ValueError, match='has the strides'):
        mmattn.torchvision_fpn(mmattn.create_model(name, out_indices=maps))
