"""Backbones of one size in UperNet, on scenes that need shapes."""

from tools.evidence.backbone_pairs import (
    ALIKE,
    PAIRS,
    SOURCE,
    TOLERANCE,
    backbone_variants,
)
from tools.evidence.claim import Claim
from tools.evidence.demos import (
    SCENE_ITERATIONS,
    SCENE_SIDE,
    SMALL_SCENES,
    SMALL_SCENES_NOTE,
)

claim = Claim(
    statement='In UperNet, H-MaiT, DAT and DAT++ beat Swin, PVTv2 beats PVT, and IViT '
    'and HyLiSANet beat PVTv2 and a ResNet, at equal size.',
    source=SOURCE,
    image_shape=(SCENE_SIDE, SCENE_SIDE),
    metric='mIoU',
    variants=backbone_variants(
        'configs/demo/upernet_{}_fashion_scenes.py',
        'model.decode_head.in_channels',
        SCENE_ITERATIONS,
        SCENE_SIDE,
        SMALL_SCENES,
    ),
    alike=ALIKE,
    tolerance=TOLERANCE,
    comparisons=PAIRS,
    notes=SMALL_SCENES_NOTE + ' Land cover was cut: there, networks hardly beat a '
    'random forest on single pixels. All are the smallest sizes of their families; '
    'Swin is DAT with shifted windows throughout. [The analysis](../hylisanet.md) says '
    'what we know about the result of HyLiSANet.',
)
