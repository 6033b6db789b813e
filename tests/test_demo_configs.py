"""Two Deformable DETRs of the demos are one network, and so are two Mask R-CNNs."""

from pathlib import Path

import pytest

pytest.importorskip('mmdet')

import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData

import mmattn  # noqa: F401  makes mmcv's operators available

DEMOS = Path(__file__).parents[1] / 'configs/demo'


def images_and_nuclei():
    """Return two images with boxes; one image needs padding."""
    torch.manual_seed(0)
    shapes = (64, 64), (64, 96)
    boxes = torch.tensor([[4.0, 6, 30, 34], [28, 30, 60, 52]])
    nuclei = InstanceData(bboxes=boxes, labels=torch.zeros(2, dtype=torch.long))
    return dict(
        inputs=[torch.randint(256, (3, *shape), dtype=torch.uint8) for shape in shapes],
        data_samples=[
            DetDataSample(metainfo=dict(img_shape=shape), gt_instances=nuclei)
            for shape in shapes
        ],
    )


def test_ours_and_mmdets_have_the_same_losses_from_the_same_weights():
    init_default_scope('mmdet')
    ours, theirs = (
        Config.fromfile(DEMOS / f'deformable_detr_{name}_hela.py')
        for name in ('ivit_n', 'mmdet_ivit_n')
    )
    for key in set(ours) | set(theirs):
        if key not in ('model', 'deformable_attention', 'ffn'):
            assert ours[key] == theirs[key], key
    detectors = [MODELS.build(cfg.model).train() for cfg in (ours, theirs)]
    detectors[1].init_weights()
    assert not any(detectors[0].load_state_dict(detectors[1].state_dict()))
    batch = images_and_nuclei()
    losses = []
    for detector in detectors:
        data = detector.data_preprocessor(batch, True)
        losses.append(detector.loss(data['inputs'], data['data_samples']))
    assert list(losses[0]) == list(losses[1])
    for name, loss in losses[0].items():
        torch.testing.assert_close(loss, losses[1][name], msg=name)


def test_make_demo_trains_the_network_of_the_long_run():
    """The records of other demos and of the evidence are those of the long run."""
    short, long, other = (
        Config.fromfile(DEMOS / f'mask_rcnn_{name}_hela.py')
        for name in ('ivit_n', 'ivit_n_300i', 'dat_n')
    )
    assert short.train_cfg.max_iters * short.train_dataloader.batch_size <= 400
    short.train_dataloader.batch_size = long.train_dataloader.batch_size
    short.model.train_cfg.rcnn.sampler.num = long.model.train_cfg.rcnn.sampler.num
    schedule = {'max_iters', 'train_cfg', 'param_scheduler', 'auto_scale_lr'}
    for key in set(long) - schedule:
        assert short[key] == long[key], key
    for key in schedule | {'train_dataloader'}:
        assert other[key] == long[key], key
