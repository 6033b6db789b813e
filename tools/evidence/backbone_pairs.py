"""Pairs of backbones that their papers compare, for detection and segmentation."""

from collections.abc import Mapping

from mmengine.config import Config

from tools.evidence.claim import ROOT, Comparison, Variant
from tools.evidence.demos import demo_variant

SOURCE = (
    'MaiT, https://arxiv.org/abs/2207.03006; DAT, https://arxiv.org/abs/2201.00520; '
    'DAT++, https://arxiv.org/abs/2309.01430; PVTv2, https://arxiv.org/abs/2106.13797; '
    'iViT, https://arxiv.org/abs/2402.17507; LiSA, https://arxiv.org/abs/2211.16289'
)
PAIRS = tuple(
    Comparison(f'{better} against {worse}', better, worse)
    for better, worse in (
        ('hmait', 'swin'),
        ('dat', 'swin'),
        ('datpp', 'swin'),
        ('pvtv2', 'pvt'),
        ('ivit', 'pvtv2'),
        ('ivit', 'resnet18'),
        ('hylisanet', 'pvtv2'),
        ('hylisanet', 'resnet18'),
    )
)
ALIKE = (
    ('hmait', 'dat', 'datpp', 'swin'),
    ('pvt', 'pvtv2'),
    ('ivit', 'hylisanet', 'pvtv2', 'resnet18'),
)
TOLERANCE = 0.12
# DAT-nano with the shifted windows of Swin in all blocks.
SWIN = {'model.backbone.blocks': ('LS', 'LS', 'LS', 'LS')}
# ResNet-18 with fewer channels. Its statistics are learned: mmdetection freezes them by
# default.
RESNET_DIMS = (36, 72, 144, 288)
RESNET = {
    'model.backbone': dict(
        _delete_=True,
        type='ResNet',
        depth=18,
        base_channels=RESNET_DIMS[0],
        norm_cfg=dict(type='BN', requires_grad=True),
        norm_eval=False,
    )
}
# IViT-nano with fewer channels in the third stage, to match the others.
IVIT_DIMS = (32, 64, 128, 256)
IVIT = {
    'model.backbone.arch': dict(
        _delete_=True, embed_dims=IVIT_DIMS, depths=(2, 2, 6, 2), num_heads=(4, 8)
    )
}


def backbone_variants(
    config: str,
    channels: str,
    iterations: int,
    side: int,
    options: Mapping[str, object],
) -> dict[str, Variant]:
    """Return the networks of the pairs.

    Args:
        config: path of the configs of a demo, with `{}` for the backbone's name.
        channels: entry of the config that lists the channels of the maps.
        iterations: see `demo_variant`.
        side: side of the images. Positions that depend on it are made for it.
        options: further entries of the config to override.
    """
    narrow_ivit = IVIT | {channels: list(IVIT_DIMS)}
    resnet = RESNET | {channels: list(RESNET_DIMS)}
    changes = {
        'ivit': ('ivit_n', narrow_ivit),
        'hylisanet': ('hylisanet_n', {}),
        'hmait': ('hmait_n', {}),
        'dat': ('dat_n', {}),
        'datpp': ('datpp_n', {}),
        'swin': ('dat_n', SWIN),
        'pvt': ('pvt_n', {}),
        'pvtv2': ('pvtv2_b0', {}),
        'resnet18': ('ivit_n', resnet),
    }
    variants = {}
    for name, (base, own) in changes.items():
        path = config.format(base)
        sized = {}
        if 'img_size' in Config.fromfile(ROOT / path).model.backbone:
            sized = {'model.backbone.img_size': side}
        variants[name] = demo_variant(path, iterations, {**own, **sized, **options})
    return variants
