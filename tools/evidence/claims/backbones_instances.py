"""Backbones of one size in Mask R-CNN, on nuclei."""

from collections.abc import Mapping

from backbone_pairs import (
    ALIKE,
    IVIT,
    IVIT_DIMS,
    PAIRS,
    RESNET,
    RESNET_DIMS,
    SOURCE,
    SWIN,
    TOLERANCE,
)
from claim import Claim
from demos import demo_variant

ITERATIONS = 150


def mask_rcnn(name: str, options: Mapping | None = None, dims: tuple = ()):
    channels = {'model.neck.in_channels': list(dims)} if dims else {}
    config = f'configs/demo/mask_rcnn_{name}_hela.py'
    return demo_variant(config, ITERATIONS, dict(options or {}) | channels)


claim = Claim(
    statement='In Mask R-CNN, H-MaiT, DAT and DAT++ beat Swin, PVTv2 beats PVT, and '
    'IViT and HyLiSANet beat PVTv2 and a ResNet, at equal size.',
    source=SOURCE,
    image_shape=(256, 256),
    metric='coco/segm_mAP',
    variants={
        'ivit': mask_rcnn('ivit_n', IVIT, IVIT_DIMS),
        'hylisanet': mask_rcnn('hylisanet_n'),
        'hmait': mask_rcnn('hmait_n'),
        'dat': mask_rcnn('dat_n'),
        'datpp': mask_rcnn('datpp_n'),
        'swin': mask_rcnn('dat_n', SWIN),
        'pvt': mask_rcnn('pvt_n'),
        'pvtv2': mask_rcnn('pvtv2_b0'),
        'resnet18': mask_rcnn('ivit_n', RESNET, RESNET_DIMS),
    },
    alike=ALIKE,
    tolerance=TOLERANCE,
    comparisons=PAIRS,
    notes=f'HeLa nuclei (`tools/datasets/hela.py`), {ITERATIONS} iterations of 4 '
    'images from random weights: half of the demo, to keep a run under six minutes.',
)
