"""Backbones of one size in UperNet, on scenes that need shapes."""

from backbone_pairs import ALIKE, PAIRS, SOURCE, TOLERANCE, backbone_variants
from claim import Claim

ITERATIONS = 600

claim = Claim(
    statement='In UperNet, H-MaiT, DAT and DAT++ beat Swin, PVTv2 beats PVT, and IViT '
    'and HyLiSANet beat PVTv2 and a ResNet, at equal size.',
    source=SOURCE,
    image_shape=(128, 128),
    metric='mIoU',
    variants=backbone_variants(
        'configs/demo/upernet_{}_fashion_scenes.py',
        'model.decode_head.in_channels',
        ITERATIONS,
    ),
    alike=ALIKE,
    tolerance=TOLERANCE,
    comparisons=PAIRS,
    notes='Scenes of Fashion-MNIST (`tools/datasets/fashion_scenes.py`), '
    f'{ITERATIONS} iterations of 4 images from random weights. Land cover was cut: '
    'there, networks hardly beat a random forest on single pixels. All are the '
    'smallest sizes of their families; Swin is DAT with shifted windows throughout.',
)
