"""Detectors of torchvision with our backbone, and what they predict."""

import torch
from small_detectors import LIMIT, Spread
from small_models import BACKBONE
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import (
    AnchorGenerator,
    DefaultBoxGenerator,
)
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

import mmattn

CLASSES = 4  # with the background
CHANNELS = 32
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = (
    torch.randn(2, 3, 128, 160, generator=GENERATOR),
    torch.tensor([[128, 160], [97, 130]]),
)
"""Two images, of which one is padded."""
SCORES = 'cls_logits', 'cls_score', 'conv.0.0'
"""Layers of scores, by the end of their names; `OTHERS` are for boxes and masks."""
OTHERS = 'bbox_pred', 'bbox_reg', 'bbox_ctrness', 'mask_fcn_logits'


def pyramid(extra_blocks=None):
    backbone = mmattn.IViT(BACKBONE['arch'])
    return mmattn.torchvision_fpn(backbone, CHANNELS, extra_blocks)


def rcnn(kind, backbone=None, **settings):
    settings |= dict(rpn_pre_nms_top_n_test=60, rpn_post_nms_top_n_test=40)
    settings |= dict(rpn_nms_thresh=0.3, box_detections_per_img=LIMIT)
    return kind(backbone or pyramid(), CLASSES, **settings)


def one_map():
    backbone = nn.Sequential(nn.Conv2d(3, CHANNELS, 16, 16), nn.ReLU())
    backbone.out_channels = CHANNELS
    return rcnn(
        FasterRCNN,
        backbone,
        rpn_anchor_generator=AnchorGenerator(((16, 48),), ((0.5, 1.0, 2.0),)),
        box_roi_pool=MultiScaleRoIAlign(['0'], 7, 2),
    )


def dense(kind, **settings):
    settings = dict(detections_per_img=LIMIT, topk_candidates=50) | settings
    return kind(
        pyramid(LastLevelP6P7(CHANNELS, CHANNELS)), num_classes=CLASSES, **settings
    )


def fcos():
    sizes = tuple((8 * 2**i,) for i in range(6))
    return dense(FCOS, anchor_generator=AnchorGenerator(sizes, ((1.0,),) * 6))


def retinanet():
    sizes = tuple((16 * 2**i, 24 * 2**i) for i in range(6))
    return dense(
        RetinaNet, anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 6)
    )


def ssd():
    backbone = pyramid()
    backbone.out_channels = [CHANNELS] * 5
    settings = dict(detections_per_img=LIMIT, topk_candidates=50, num_classes=CLASSES)
    return SSD(backbone, DefaultBoxGenerator([[2]] * 5), (160, 128), **settings)


MODELS = {
    'faster_rcnn': lambda: rcnn(FasterRCNN),
    'mask_rcnn': lambda: rcnn(MaskRCNN),
    'one_map': one_map,
    'retinanet': retinanet,
    'fcos': fcos,
    'ssd': ssd,
}


@torch.no_grad()
def detector(name: str) -> nn.Module:
    """Build a detector with random weights that finds objects."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if name.endswith(SCORES) or '.classification_head.module_list' in name:
                layer.register_forward_hook(Spread(1.5))
            elif name.endswith(OTHERS) or '.regression_head.module_list' in name:
                layer.register_forward_hook(Spread(0.5))
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')
                continue
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)
    predict(model, *IMAGES)
    for layer in model.modules():
        if isinstance(layer, MultiScaleRoIAlign):
            layer.scales = None  # a new detector does not know them
    return model


class Blobs(nn.Module):
    """Predict the logits of a smooth mask in each box, a larger one in each class."""

    def forward(self, x: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, 28) ** 2
        radii = torch.linspace(0.3, 0.8, CLASSES)[:, None, None]
        shift = x.mean((1, 2, 3)).tanh()[:, None, None, None]
        return 5 * (radii - line - line[:, None]) + shift


class Prepared(nn.Module):
    """A transform of images that are prepared."""

    def __init__(self, image: Tensor, image_size: Tensor):
        super().__init__()
        self.images = ImageList(image, [tuple(size) for size in image_size.tolist()])

    def forward(self, images, targets):
        return self.images, targets

    def postprocess(self, found, *_):
        return found


@torch.no_grad()
def predict(model: nn.Module, image: Tensor, image_size: Tensor) -> list[list[Tensor]]:
    """Return boxes with scores, labels and masks in boxes that torchvision predicts."""
    transform, model.transform = model.transform, Prepared(image, image_size)
    found = model(list(image))
    model.transform = transform
    return [
        [
            torch.cat([each['boxes'], each['scores'][:, None]], 1),
            each['labels'],
            *([each['masks'][:, 0]] if 'masks' in each else []),
        ]
        for each in found
    ]
