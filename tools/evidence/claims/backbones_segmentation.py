"""Backbones of one size in UperNet, on scenes that need shapes."""

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

ITERATIONS = 600


def upernet(name: str, options: Mapping | None = None, dims: tuple = ()):
    channels = {'model.decode_head.in_channels': list(dims)} if dims else {}
    config = f'configs/demo/upernet_{name}_fashion_scenes.py'
    return demo_variant(config, ITERATIONS, dict(options or {}) | channels)


claim = Claim(
    statement='In UperNet, H-MaiT, DAT and DAT++ beat Swin, PVTv2 beats PVT, and IViT '
    'and HyLiSANet beat PVTv2 and a ResNet, at equal size.',
    source=SOURCE,
    image_shape=(128, 128),
    metric='mIoU',
    variants={
        'ivit': upernet('ivit_n', IVIT, IVIT_DIMS),
        'hylisanet': upernet('hylisanet_n'),
        'hmait': upernet('hmait_n'),
        'dat': upernet('dat_n'),
        'datpp': upernet('datpp_n'),
        'swin': upernet('dat_n', SWIN),
        'pvt': upernet('pvt_n'),
        'pvtv2': upernet('pvtv2_b0'),
        'resnet18': upernet('ivit_n', RESNET, RESNET_DIMS),
    },
    alike=ALIKE,
    tolerance=TOLERANCE,
    comparisons=PAIRS,
    notes='Scenes of Fashion-MNIST (`tools/datasets/fashion_scenes.py`), '
    f'{ITERATIONS} iterations of 4 images from random weights. Land cover was cut: '
    'there, networks hardly beat a random forest on single pixels. All are the '
    'smallest sizes of their families; Swin is DAT with shifted windows throughout.',
)
