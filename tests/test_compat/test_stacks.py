"""Stock mm models build, train one step and predict on the operators we serve."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from mmattn.compat import activate

activate()
mmdet = pytest.importorskip('mmdet')
mmseg = pytest.importorskip('mmseg')

from mmcv.ops import DeformConv2dPack, ModulatedDeformConv2dPack  # noqa: E402
from mmdet.structures import DetDataSample  # noqa: E402
from mmdet.structures.mask import BitmapMasks  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.model import revert_sync_batchnorm  # noqa: E402
from mmengine.optim import OptimWrapper  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from mmengine.structures import InstanceData, PixelData  # noqa: E402
from mmseg.structures import SegDataSample  # noqa: E402

H, W = 96, 128
NUM_CLASSES = 3
MASK_RCNN = 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
DETECTORS = {
    'mask-rcnn': MASK_RCNN,
    'retinanet': 'retinanet/retinanet_r50_fpn_1x_coco.py',
    'mask-rcnn-dcnv2': 'dcnv2/mask-rcnn_r50-mdconv-c3-c5_fpn_1x_coco.py',
    'mask-rcnn-dcnv1': 'dcn/mask-rcnn_r50-dconv-c3-c5_fpn_1x_coco.py',
    'mask-rcnn-soft-nms': MASK_RCNN,
    'deformable-detr': 'deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
}
SEGMENTORS = {
    'upernet': 'upernet/upernet_r50_4xb4-160k_ade20k-512x512.py',
    'point-rend': 'point_rend/pointrend_r50_4xb4-160k_ade20k-512x512.py',
}
# Layers that only reach the loss through a layer whose weight starts at 0.
BEHIND_ZEROS = {
    'deformable-detr': (
        'level_embed',
        'bbox_head.reg_branches.0.0.',
        'bbox_head.reg_branches.0.2.',
    )
}


def stock_model(package, path):
    config = Config.fromfile(Path(package.__file__).parent / '.mim/configs' / path)
    return config.model


def set_num_classes(config):
    """Sets it in every head: they sit at different depths in different models."""
    if isinstance(config, dict):
        if 'num_classes' in config:
            config['num_classes'] = NUM_CLASSES
        for value in config.values():
            set_num_classes(value)
    elif isinstance(config, list):
        for value in config:
            set_num_classes(value)


def build(config, scope):
    torch.manual_seed(0)
    init_default_scope(scope)
    set_num_classes(config)
    model = revert_sync_batchnorm(MODELS.build(config))
    model.init_weights()
    # ResNet starts its residual branches at 0, which would leave them no gradient.
    for name, parameter in model.named_parameters():
        if name.endswith('bn3.weight'):
            torch.nn.init.constant_(parameter, 0.2)
    return model


def random_images(number):
    generator = torch.Generator().manual_seed(0)
    shape = number, 3, H, W
    return list(torch.randint(256, shape, generator=generator, dtype=torch.uint8))


def detection_batch():
    boxes = torch.tensor([[8.0, 8.0, 72.0, 60.0], [40.0, 30.0, 120.0, 90.0]])
    masks = torch.zeros(2, H, W, dtype=torch.uint8)
    masks[0, 10:60, 10:70] = masks[1, 32:88, 44:118] = 1
    size = H, W
    sample = DetDataSample(
        metainfo={
            'img_shape': size,
            'ori_shape': size,
            'batch_input_shape': size,
            'scale_factor': (1, 1),
        },
        gt_instances=InstanceData(
            bboxes=boxes,
            labels=torch.tensor([0, 2]),
            masks=BitmapMasks(masks.numpy(), H, W),
        ),
    )
    return {'inputs': random_images(1), 'data_samples': [sample]}


def segmentation_batch():
    # Two images: a branch of UperNet pools to one pixel, which BatchNorm refuses alone.
    samples = []
    for shift in (0, 1):
        classes = (torch.arange(W) * NUM_CLASSES // W + shift) % NUM_CLASSES
        sample = SegDataSample(metainfo={'img_shape': (H, W), 'ori_shape': (H, W)})
        sample.gt_sem_seg = PixelData(data=classes.expand(1, H, W).clone())
        samples.append(sample)
    return {'inputs': random_images(2), 'data_samples': samples}


def train_one_step(model, batch, without_gradient=()):
    """One optimizer step; every trainable parameter must get a finite gradient."""
    model.train()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradients[name] = None
            parameter.register_hook(partial(gradients.__setitem__, name))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = model.train_step(batch, OptimWrapper(optimizer))
    assert all(torch.isfinite(loss) for loss in losses.values()), losses
    assert losses['loss'] > 0
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert torch.isfinite(gradient).all(), name
        assert gradient.any() or name.startswith(tuple(without_gradient)), name


def predict(model, batch):
    model.eval()
    with torch.no_grad():
        return model.test_step(batch)


@pytest.mark.parametrize('name', DETECTORS)
def test_detector_trains_and_predicts(name, monkeypatch):
    config = stock_model(mmdet, DETECTORS[name])
    config.backbone.init_cfg = None
    # An untrained detector is sure of nothing.
    if 'rcnn' in name:
        config.test_cfg.rcnn.score_thr = 0.0
    if name == 'retinanet':
        config.test_cfg.score_thr = 0.0
    calls = []
    if name == 'mask-rcnn-soft-nms':
        config.test_cfg.rcnn.nms = {'type': 'soft_nms', 'iou_threshold': 0.5}
        # `mmcv.ops.nms` is the function; the module is only in sys.modules.
        module = sys.modules['mmcv.ops.nms']
        soft_nms = module.soft_nms
        monkeypatch.setattr(
            module,
            'soft_nms',
            lambda *args, **kwargs: calls.append(1) or soft_nms(*args, **kwargs),
        )
    model = build(config, 'mmdet')
    deformable = [
        type(module)
        for module in model.modules()
        if isinstance(module, DeformConv2dPack | ModulatedDeformConv2dPack)
    ]
    layer = {'dcnv1': DeformConv2dPack, 'dcnv2': ModulatedDeformConv2dPack}
    # One in each block of the last three stages of ResNet-50.
    assert deformable == [layer[name[-5:]]] * 13 if 'dcn' in name else not deformable

    train_one_step(model, detection_batch(), BEHIND_ZEROS.get(name, ()))
    (sample,) = predict(model, detection_batch())
    found = sample.pred_instances
    assert 0 < len(found) <= 100
    assert found.bboxes.shape == (len(found), 4)
    assert (found.scores > 0).all() and (found.scores < 1).all()
    assert found.labels.min() >= 0 and found.labels.max() < NUM_CLASSES
    if 'mask-rcnn' in name:
        assert found.masks.shape == (len(found), H, W)
    assert bool(calls) == (name == 'mask-rcnn-soft-nms')


@pytest.mark.parametrize('name', SEGMENTORS)
def test_segmentor_trains_and_predicts(name):
    config = stock_model(mmseg, SEGMENTORS[name])
    config.pretrained = None
    config.data_preprocessor.size = H, W
    model = build(config, 'mmseg')
    train_one_step(model, segmentation_batch())
    samples = predict(model, segmentation_batch())
    assert len(samples) == 2
    for sample in samples:
        assert sample.seg_logits.data.shape == (NUM_CLASSES, H, W)
        assert torch.isfinite(sample.seg_logits.data).all()
        assert sample.pred_sem_seg.data.shape == (1, H, W)
