"""Backbones of one size in Mask R-CNN, on nuclei."""

from backbone_pairs import ALIKE, PAIRS, SOURCE, TOLERANCE, backbone_variants
from claim import Claim

ITERATIONS = 150

claim = Claim(
    statement='In Mask R-CNN, H-MaiT, DAT and DAT++ beat Swin, PVTv2 beats PVT, and '
    'IViT and HyLiSANet beat PVTv2 and a ResNet, at equal size.',
    source=SOURCE,
    image_shape=(256, 256),
    metric='coco/segm_mAP',
    variants=backbone_variants(
        'configs/demo/mask_rcnn_{}_hela.py',
        'model.neck.in_channels',
        ITERATIONS,
    ),
    alike=ALIKE,
    tolerance=TOLERANCE,
    comparisons=PAIRS,
    notes=f'HeLa nuclei (`tools/datasets/hela.py`), {ITERATIONS} iterations of 4 '
    'images from random weights: half of the demo, to keep a run under six minutes.',
)
