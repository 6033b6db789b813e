from pathlib import Path

import pytest

pytest.importorskip('mmdet')

import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData

import mmattn  # noqa: F401  makes mmcv's operators available
from projects.example_project.landmark_pyramid import LandmarkPyramid

CONFIG = Path(__file__).with_name('mask_rcnn_landmark_pyramid_hela.py')


@pytest.mark.parametrize('height, width', [(64, 96), (61, 37), (1, 1)])
def test_maps_have_strides_4_to_32(height, width):
    maps = LandmarkPyramid()(torch.randn(2, 3, height, width))
    for stride, found in zip((4, 8, 16, 32), maps, strict=True):
        assert found.shape[2:] == (-(-height // stride), -(-width // stride))


def test_unequal_heads_are_refused():
    with pytest.raises(ValueError, match=r'head_width=32, got \(32, 50, 128, 256\)'):
        LandmarkPyramid(embed_dims=(32, 50, 128, 256))


def test_detector_of_the_config_learns():
    """One batch of two images reaches every parameter of the backbone."""
    torch.manual_seed(0)
    init_default_scope('mmdet')
    detector = MODELS.build(Config.fromfile(CONFIG).model).train()
    masks = torch.zeros(2, 64, 64).numpy()
    masks[0, 6:34, 4:30] = masks[1, 30:52, 28:60] = 1
    nuclei = InstanceData(
        bboxes=torch.tensor([[4.0, 6, 30, 34], [28, 30, 60, 52]]),
        labels=torch.zeros(2, dtype=torch.long),
        masks=BitmapMasks(masks.astype('uint8'), 64, 64),
    )
    batch = dict(
        inputs=[torch.randint(256, (3, 64, 64), dtype=torch.uint8)] * 2,
        data_samples=[
            DetDataSample(
                metainfo=dict(img_shape=(64, 64), scale_factor=(1.0, 1.0)),
                gt_instances=nuclei,
                ignored_instances=InstanceData(bboxes=torch.zeros(0, 4)),
            )
            for _ in range(2)
        ],
    )
    data = detector.data_preprocessor(batch, True)
    losses = detector.loss(data['inputs'], data['data_samples'])
    loss, _ = detector.parse_losses(losses)
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in detector.backbone.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
