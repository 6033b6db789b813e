"""Stock mm models build, train one step and predict on the operators we fill in."""

import sys
from collections import Counter

import pytest
import torch
from mmcv.ops import ModulatedDeformConv2dPack, MultiScaleDeformableAttention
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.hub import get_config
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from torch.utils._python_dispatch import TorchDispatchMode

H, W = 64, 96
NUM_CLASSES, DIMS, LAYERS = 3, 32, 2
DCN = 'dcnv2/mask-rcnn_r50-mdconv-c3-c5_fpn_1x_coco.py'
TRANSFORMERS = {
    'dino': 'dino/dino-4scale_r50_8xb2-12e_coco.py',
    'mask2former': 'mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
}
# By key, what makes the models small wherever it stands in their configs.
CLASSES = dict(num_classes=NUM_CLASSES, num_things_classes=NUM_CLASSES)
SMALL = CLASSES | dict(
    num_queries=12,
    num_dn_queries=4,
    embed_dims=DIMS,
    num_heads=4,
    feedforward_channels=48,
    num_feats=DIMS // 2,
    feat_channels=DIMS,
    class_weight=[1.0] * NUM_CLASSES + [0.1],
    num_points=64,  # where Mask2Former compares masks
)


def shrink(config, values):
    if isinstance(config, dict):
        config.update({key: values[key] for key in config if key in values})
        if 'layer_cfg' in config:
            config['num_layers'] = LAYERS
        config = list(config.values())
    if isinstance(config, list):
        for part in config:
            shrink(part, values)


def stock_model(path, values):
    config = get_config(f'mmdet::{path}')
    shrink(config.model, values)
    config.model.backbone.init_cfg = None
    return config.model


def build(config):
    torch.manual_seed(0)
    init_default_scope('mmdet')
    model = MODELS.build(config)
    model.init_weights()
    # ResNet starts its residual branches at 0, which would leave them no gradient.
    for name, parameter in model.named_parameters():
        if name.endswith('bn3.weight'):
            torch.nn.init.constant_(parameter, 0.2)
    return model


def detection_batch(*sizes):
    samples = []
    for size in sizes:
        masks = torch.zeros(2, *size, dtype=torch.uint8)
        masks[0, 5:30, 4:50] = masks[1, 20:40, 30:80] = 1
        boxes = torch.tensor([[4.0, 5.0, 50.0, 30.0], [30.0, 20.0, 80.0, 40.0]])
        instances = InstanceData(
            bboxes=boxes,
            labels=torch.tensor([0, 2]),
            masks=BitmapMasks(masks.numpy(), *size),
        )
        metainfo = dict(img_shape=size, ori_shape=size, scale_factor=(1, 1))
        samples.append(DetDataSample(metainfo=metainfo, gt_instances=instances))
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(256, (3, *s), generator=generator).byte() for s in sizes]
    return dict(inputs=images, data_samples=samples)


def train_one_step(model, batch):
    """Every trainable parameter must get a finite gradient, and most another than 0."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.zero_grad = lambda **_: None  # which would follow the step
    losses = model.train_step(batch, OptimWrapper(optimizer))
    assert all(torch.isfinite(loss) for loss in losses.values()), losses
    assert losses['loss'] > 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            yield name, bool(parameter.grad.any())


def test_a_detector_with_deformable_convolutions_and_soft_nms(monkeypatch):
    config = stock_model(DCN, CLASSES)
    config.backbone.base_channels = 16
    config.neck.in_channels = [64, 128, 256, 512]
    config.roi_head.bbox_head.fc_out_channels = 64
    config.test_cfg.rcnn.score_thr = 0.0  # untrained, it is sure of nothing
    config.test_cfg.rcnn.nms = {'type': 'soft_nms', 'iou_threshold': 0.5}
    # `mmcv.ops.nms` is the function; the module is only in sys.modules.
    module, calls = sys.modules['mmcv.ops.nms'], []
    soft_nms = module.soft_nms
    counted = lambda *args, **kwargs: calls.append(1) or soft_nms(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(module, 'soft_nms', counted)
    model = build(config)
    layers = [m for m in model.modules() if isinstance(m, ModulatedDeformConv2dPack)]
    assert len(layers) == 13  # in each block of the last three stages of ResNet-50
    assert all(moved for _, moved in train_one_step(model, detection_batch((H, W))))
    with torch.no_grad():
        (sample,) = model.eval().test_step(detection_batch((H, W)))
    found = sample.pred_instances
    assert 0 < len(found) <= 100 and calls
    assert found.bboxes.shape == (len(found), 4)
    assert (found.scores > 0).all() and (found.scores < 1).all()
    assert found.masks.shape == (len(found), H, W)


class Calls(TorchDispatchMode):
    """Counts the operators that run, also in the backward."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('name', TRANSFORMERS)
def test_a_transformer_runs_on_our_operator(name):
    """In each layer, forwards and backwards, and no sampling is left to mmcv."""
    config = stock_model(TRANSFORMERS[name], SMALL)
    config.data_preprocessor.batch_augments = None
    channels = [8 * 2**index for index in config.backbone.out_indices]
    config.backbone.update(depth=18, base_channels=8)
    if 'neck' in config:
        config.neck.update(in_channels=channels, out_channels=DIMS)
        config.bbox_head.embed_dims = DIMS
    else:
        config.panoptic_head.update(in_channels=channels, out_channels=DIMS)
    model = build(config)
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, MultiScaleDeformableAttention)
    ]
    assert len(layers) == (LAYERS if name == 'mask2former' else 2 * LAYERS)
    with Calls() as calls:
        moved = dict(train_one_step(model, detection_batch((H, W), (H - 16, W - 8))))
    assert all(moved[f'{layer}.value_proj.weight'] for layer in layers)
    operators = (
        torch.ops.mmattn.ms_deform_attn,
        torch.ops.mmattn.ms_deform_attn_backward,
    )
    assert [calls.counts[operator] for operator in operators] == [len(layers)] * 2
