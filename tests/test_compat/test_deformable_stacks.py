"""mmdet's models of the DETR family train a step on our multi-scale attention."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.compat import activate

activate()
mmdet = pytest.importorskip('mmdet')

from mmcv.ops import MultiScaleDeformableAttention  # noqa: E402
from mmdet.structures import DetDataSample  # noqa: E402
from mmdet.structures.mask import BitmapMasks  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import OptimWrapper  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

from tools.benchmark.tolerances import assert_close  # noqa: E402

CONFIGS = Path(mmdet.__file__).parent / '.mim/configs'
MODELS_OF_MMDET = {
    'deformable-detr': 'deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
    'dino': 'dino/dino-4scale_r50_8xb2-12e_coco.py',
    'mask2former': 'mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
}
H, W = 64, 96
NUM_CLASSES = 3
DIMS = 32
# By key, what makes the models small wherever it stands in their configs.
SMALL = dict(
    num_queries=12,
    num_dn_queries=4,
    embed_dims=DIMS,
    num_heads=4,
    feedforward_channels=48,
    num_feats=DIMS // 2,
    feat_channels=DIMS,
    num_classes=NUM_CLASSES,
    num_things_classes=NUM_CLASSES,
    class_weight=[1.0] * NUM_CLASSES + [0.1],
    num_points=64,  # where Mask2Former compares masks
)
LAYERS = 2
FORWARD = torch.ops.mmattn.ms_deform_attn
BACKWARD = torch.ops.mmattn.ms_deform_attn_backward


def shrink(config):
    if isinstance(config, dict):
        config.update({key: SMALL[key] for key in config if key in SMALL})
        if 'layer_cfg' in config:
            config['num_layers'] = LAYERS
        config = list(config.values())
    if isinstance(config, list):
        for part in config:
            shrink(part)


def small_model(name, **pixel_decoder):
    config = Config.fromfile(CONFIGS / MODELS_OF_MMDET[name]).model
    shrink(config)
    config.data_preprocessor.batch_augments = None
    indices = config.backbone.out_indices
    config.backbone.update(depth=18, base_channels=8, init_cfg=None)
    channels = [8 * 2**index for index in indices]
    if 'neck' in config:
        config.neck.update(in_channels=channels, out_channels=DIMS)
        config.bbox_head.embed_dims = DIMS
    else:
        config.panoptic_head.update(in_channels=channels, out_channels=DIMS)
        config.panoptic_head.pixel_decoder.update(pixel_decoder)
    torch.manual_seed(0)
    init_default_scope('mmdet')
    model = MODELS.build(config)
    model.init_weights()
    return model


def batch():
    """Two images of different sizes, so that there is padding."""
    generator = torch.Generator().manual_seed(0)
    images, samples = [], []
    for size in (H, W), (H - 16, W - 8):
        images.append(torch.randint(256, (3, *size), generator=generator).byte())
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
    return dict(inputs=images, data_samples=samples)


class Calls(TorchDispatchMode):
    """Counts the operators that run, those of the backward as well."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('name', MODELS_OF_MMDET)
def test_a_step_runs_on_our_operator(name):
    """In each layer, forwards and backwards, and no sampling is left to mmcv."""
    model = small_model(name).train()
    layers = [
        m for m in model.modules() if isinstance(m, MultiScaleDeformableAttention)
    ]
    assert len(layers) == (LAYERS if name == 'mask2former' else 2 * LAYERS)
    before = {layer: layer.value_proj.weight.detach().clone() for layer in layers}
    optimizer = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-2))
    with Calls() as calls:
        losses = model.train_step(batch(), optimizer)
    assert all(torch.isfinite(loss) for loss in losses.values()) and losses['loss'] > 0
    assert calls.counts[FORWARD] == calls.counts[BACKWARD] == len(layers)
    for layer, weight in before.items():
        assert torch.isfinite(layer.value_proj.weight).all()
        assert not torch.equal(layer.value_proj.weight, weight)


def test_mask2former_loses_the_same_with_our_pixel_decoder():
    """Only the type is another in its config; it takes the weights of mmdet's."""
    theirs = small_model('mask2former')
    ours = small_model('mask2former', type='mmattn.Mask2FormerPixelDecoder')
    ours.load_state_dict(theirs.state_dict())
    losses = []
    for model in theirs, ours:
        model.train()
        data = model.data_preprocessor(batch(), training=True)
        torch.manual_seed(1)  # of the points at which masks are compared
        losses.append(model(**data, mode='loss'))
    assert losses[0].keys() == losses[1].keys()
    for name, loss in losses[0].items():
        assert_close(name, loss, losses[1][name])
