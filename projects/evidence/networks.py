"""The networks of the claims, and how they are trained."""

from dataclasses import replace

from projects.evidence.demo import Demo
from projects.evidence.training import Training
from tools.converters.efficientnet_lite0 import OUT as LITE0

PATCHES = dict(patch_size=4, img_size=28)  # 7 x 7 tokens
# Equation 7 as printed: without what our iViT infers from the paper's tables. The paper
# has 49 landmarks for 196 tokens, and here there are 16 for 49.
AS_PRINTED = dict(local_kernel=None, gate=False, landmarks=4)


def vit(attention: str, heads: int, *, expand: int | None = 1, **options) -> Training:
    arch = dict(embed_dims=48, depth=4, num_heads=heads)
    backbone = dict(type='ViT', arch=arch, attention=attention, **PATCHES)
    if attention != 'mhsa':
        backbone |= AS_PRINTED | dict(interact_expand=expand)
    return Training(backbone, **options)


def lisanet(patterns: int = 16, channels: int = 48, **mixer) -> Training:
    arch = dict(embed_dims=(channels,), depths=(4,), mlp_ratios=(4,), conv_stages=0)
    arch |= dict(patterns=patterns)
    kind = 'AblationLiSANet' if mixer else 'LiSANet'
    return Training(dict(type=kind, arch=arch, **mixer, **PATCHES))


def deit(**masks) -> Training:
    arch = dict(embed_dims=48, depth=4, num_heads=4)
    masks = dict(masking='none') | masks
    return Training(dict(type='MaiT', arch=arch, **masks, **PATCHES))


def drawn(network: Training, *measures: str) -> Training:
    """Return a network without training, whose map is measured."""
    return replace(network, images=0, measures=measures)


INTERACTION = {
    f'{name} {heads}': vit(attention, heads, tests=tests, measures=('diversity',))
    for name, attention, heads, tests in (
        ('dense', 'mhsa', 2, ()),
        ('dense', 'mhsa', 8, (44,)),
        ('mixed', 'mhsa_interaction', 2, ()),
        ('mixed', 'mhsa_interaction', 8, ()),
        ('landmarks mixed', 'imhsa', 8, (44,)),
    )
} | {'landmarks 8': vit('imhsa', 8, expand=None, measures=('diversity',))}
MASKS = {
    'none': deit(),
    'hard': deit(masking='sch1'),
    'soft': deit(masking='soft'),
    'random': deit(masking='sch1', random_mask_seed=0),
}
PATTERNS = {
    'LiSA 16': lisanet(),
    'LiSA 4': lisanet(4),
    'attention': lisanet(channels=60, num_heads=4, mixer='self_attention_rpe'),
    'global filter': lisanet(channels=64, mixer='global_filter'),
    'convolution': lisanet(channels=64, mixer='depthwise'),
}
DEFORMABLE_DETR = 'configs/demo/deformable_detr_ivit_n_hela.py'
ONE_MAP = {
    'model.backbone.out_indices': (2,),
    'model.neck.in_channels': [160],
    'model.neck.num_outs': 1,
    'model.encoder.num_levels': 1,
    'model.decoder.num_levels': 1,
}
PRETRAINED = dict(type='Pretrained', checkpoint=str(LITE0))


def detr(*, refine: bool, two_stage: bool = False, **options) -> Demo:
    stages = {
        'model.decoder.with_box_refine': refine,
        'model.decoder.as_two_stage': two_stage,
    }
    return Demo(DEFORMABLE_DETR, 160, stages | options)


def mask_rcnn(**options) -> Demo:
    """Return a Mask R-CNN on nuclei, which sees 2 images in an iteration."""
    options |= {
        'train_dataloader.batch_size': 2,
        'model.train_cfg.rcnn.sampler.num': 128,
    }
    return Demo('configs/demo/mask_rcnn_efficientnet_lite0_hela.py', 60, options)


DIMS, DEPTHS, HEADS = (16, 32, 64, 128), (1, 1, 2, 1), (1, 2, 4, 8)
PYRAMID = dict(embed_dims=DIMS, depths=DEPTHS, num_heads=HEADS)
DEEPER = PYRAMID | dict(depths=(1, 1, 3, 1))
CONV_FIRST = dict(embed_dims=DIMS, depths=DEPTHS, mlp_ratios=(4,) * 4, conv_stages=2)
REDUCED = dict(mlp_ratios=(4,) * 4, sr_ratios=(4, 2, 1, 1), linear=False)
DOUBLED = dict(img_size=56)  # images of 56 pixels
BACKBONES = {
    'iViT': dict(type='IViT', arch=PYRAMID | dict(num_heads=(4, 8)), landmarks=2),
    'HyLiSANet': dict(type='LiSANet', arch=CONV_FIRST | dict(patterns=8), **DOUBLED),
    'H-MaiT': dict(type='HMaiT', arch=DEEPER | dict(masked_heads=(1, 2, 2, 0))),
    'DAT++': dict(
        type='DATPlusPlus', arch=PYRAMID | dict(num_groups=(1, 1, 2, 4)), **DOUBLED
    ),
    'PVTv2': dict(type='PVTv2', arch=PYRAMID | REDUCED),
    'Swin': dict(
        type='DAT',
        arch=DEEPER | dict(num_groups=(0,) * 4),
        blocks=('LS',) * 4,
        **DOUBLED,
    ),
    'ConvNeXt': dict(
        type='timm', model_name='convnext_atto', dims=DIMS, depths=(1, 1, 2, 2)
    ),
}
RATES = 1e-3, 2e-3, 4e-3


def deformable(offsets: bool) -> Training:
    """Return a DAT of two stages, on images that lie anywhere."""
    arch = dict(embed_dims=(32, 64), depths=(2, 2), num_heads=(2, 4), num_groups=(1, 2))
    backbone = dict(type='DAT', arch=arch, blocks=('LD', 'LD'), window_size=7)
    backbone |= dict(offsets=offsets, **DOUBLED)
    return Training(backbone, images=51_200, size=56, scattered=True)


MASKED_HEADS = dict(masking=(4,) * 4)  # all heads of all layers
REACHES = {
    'none': deit(),
    'zeros': deit(**MASKED_HEADS),
    'hard': deit(**MASKED_HEADS, mask_fill='neg_inf'),
    'soft': deit(masking=('soft',) * 4),
    'random': deit(**MASKED_HEADS, mask_fill='neg_inf', random_mask_seed=0),
}
# Networks of nano size, and networks of other families whose weights they read.
NANO = dict(embed_dims=(32, 64, 160, 256), depths=(2, 2, 6, 2), num_heads=(1, 2, 5, 8))
TWICE = NANO | dict(embed_dims=(32, 64, 128, 256), num_heads=(1, 2, 4, 8))
SMALL_VIT = dict(embed_dims=96, depth=6, num_heads=3)
RELATIVES = {
    'IViT': (
        dict(type='IViT', arch='nano', landmarks=2),
        dict(type='CAFormer', dims=NANO['embed_dims'], depths=NANO['depths']),
    ),
    'ViT with iMHSA': (
        dict(type='ViT', arch=SMALL_VIT, landmarks=4, **PATCHES),
        dict(type='timm', model_name='deit_tiny_patch16_224', **PATCHES)
        | dict(embed_dim=96, depth=6, num_heads=3),
    ),
    'H-MaiT': (
        dict(type='HMaiT', arch=TWICE | dict(masked_heads=(1, 2, 2, 0))),
        dict(type='timm', model_name='swin_tiny_patch4_window7_224', img_size=64)
        | dict(embed_dim=32, depths=TWICE['depths'], num_heads=TWICE['num_heads'])
        | dict(always_partition=True),  # windows keep their size of 7 on small maps
    ),
}


def starts() -> dict[str, Training]:
    """Return each network on the even classes, from both starts.

    Donors learn the odd ones.
    """
    found = {}
    for name, (ours, other) in RELATIVES.items():
        common = dict(size=ours.get('img_size', 64), rate=1e-3)
        donor = Training(other, (1, 3, 5, 7, 9), images=600 * 32, **common)
        for start, weights in (('random', None), ('donor', donor)):
            found[f'{name}, {start}'] = Training(
                ours, (0, 2, 4, 6, 8), weights, images=100 * 32, **common
            )
    return found
