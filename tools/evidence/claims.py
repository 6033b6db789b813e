"""The claims, by name. `docs/evidence/README.md` has the results."""

from dataclasses import replace

from mmattn.converters.efficientnet_lite0 import OUT as LITE0
from tools.evidence.claim import Claim, Comparison
from tools.evidence.demo import Demo
from tools.evidence.training import Training

IVIT = 'iMHSA, https://arxiv.org/abs/2402.17507'
LISA = 'LiSA, https://arxiv.org/abs/2211.16289'
MAIT = 'MaiT, https://arxiv.org/abs/2207.03006'
DAT = 'DAT, https://arxiv.org/abs/2201.00520'
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


def lisanet(channels: int = 48, mixer: str = 'lisa', patterns: int = 16) -> Training:
    arch = dict(embed_dims=(channels,), depths=(4,), mlp_ratios=(4,), conv_stages=0)
    arch |= dict(patterns=patterns)
    heads = 4 if channels % 16 else None
    backbone = dict(type='LiSANet', arch=arch, mixer=mixer, num_heads=heads, **PATCHES)
    return Training(backbone)


def deit(**masks) -> Training:
    arch = dict(embed_dims=48, depth=4, num_heads=4)
    masks = dict(masking='none') | masks
    return Training(
        dict(type='MaiT', arch=arch, out_type='cls_token', **masks, **PATCHES)
    )


def starts() -> dict[str, Training]:
    """Return each network on the even classes, from both starts.

    Donors learn the odd ones.
    """
    found = {}
    for name, (ours, other) in RELATIVES.items():
        size = ours.get('img_size', 64)
        common = dict(size=size, batch=32, rate=1e-3)
        donor = Training(other, (1, 3, 5, 7, 9), images=600 * 32, **common)
        for start, weights in (('random', None), ('donor', donor)):
            found[f'{name}, {start}'] = Training(
                ours, (0, 2, 4, 6, 8), weights, images=100 * 32, **common
            )
    return found


def drawn(network: Training, *measures: str) -> Training:
    """Return a network without training, whose map is measured."""
    backbone = {k: v for k, v in network.backbone.items() if k != 'out_type'}
    return replace(network, backbone=backbone, images=0, measures=measures)


def pairs(*texts: tuple, **options) -> tuple[Comparison, ...]:
    """Return comparisons of (better, worse) or (better, worse, text)."""
    return tuple(
        Comparison(*(text or [f'{better} against {worse}']), better, worse, **options)
        for better, worse, *text in texts
    )


def diversities() -> tuple[Comparison, ...]:
    """Compare heads that interact with heads that do not."""
    found = ()
    for better, worse in (('mixed 8', 'dense 8'), ('landmarks mixed 8', 'landmarks 8')):
        for metric, name in (
            ('head_variance', 'variance'),
            ('similarity', 'similarity, lower'),
        ):
            text = f'{name}: {better} against {worse}'
            lower = metric == 'similarity'
            found += pairs((better, worse, text), metric=metric, lower=lower)
    return found


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
    'LiSA 4': lisanet(patterns=4),
    'attention': lisanet(60, 'self_attention_rpe'),
    'global filter': lisanet(64, 'global_filter'),
    'convolution': lisanet(64, 'depthwise'),
}
DEFORMABLE_DETR = 'configs/demo/deformable_detr_ivit_n_hela.py'
SCENES = 'configs/demo/upernet_{}_fashion_scenes.py'
SIDE = 64  # of the scenes, half their size
ONE_MAP = {
    'model.backbone.out_indices': (2,),
    'model.neck.in_channels': [160],
    'model.neck.num_outs': 1,
    'model.encoder.num_levels': 1,
    'model.decoder.num_levels': 1,
}
PRETRAINED = dict(type='Pretrained', checkpoint=str(LITE0))
LARGER = 'landmarks mixed 8:accuracy@44'


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


def upernet(name: str, iterations: int = 3600, **options) -> Demo:
    """Return an UperNet on scenes of clothes, enlarged to their size for the truth."""
    resize = dict(type='Resize', scale=(SIDE, SIDE))
    load, labels = dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')
    flip, pack = dict(type='RandomFlip', prob=0.5), dict(type='PackSegInputs')
    options |= {
        'train_dataloader.batch_size': 8,
        'train_dataloader.dataset.pipeline': [load, labels, resize, flip, pack],
        'val_dataloader.dataset.pipeline': [load, resize, labels, pack],
    }
    return Demo(SCENES.format(name), iterations, options, SIDE)


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
BEATEN = (
    ('iViT', 'PVTv2'),
    ('iViT', 'ConvNeXt'),
    ('HyLiSANet', 'PVTv2'),
    ('HyLiSANet', 'ConvNeXt'),
    ('H-MaiT', 'Swin'),
    ('DAT++', 'Swin'),
)
SEGMENTED = ('iViT', 'ivit_n'), ('HyLiSANet', 'hylisanet_n'), ('H-MaiT', 'hmait_n')
SEGMENTED += ('DAT++', 'datpp_n'), ('PVTv2', 'pvtv2_b0')
MASKED_HEADS = dict(masking=(4,) * 4)  # all heads of all layers
REACHES = {
    'none': deit(),
    'zeros': deit(**MASKED_HEADS),
    'hard': deit(**MASKED_HEADS, mask_fill='neg_inf'),
    'soft': deit(masking=('soft',) * 4),
    'random': deit(**MASKED_HEADS, mask_fill='neg_inf', random_mask_seed=0),
}
# Networks of nano size, and those of other families whose weights they read.
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
    'HyLiSANet': (
        dict(type='LiSANet', arch='hybrid-nano', img_size=64),
        dict(type='PVTv2', arch=NANO | REDUCED | dict(sr_ratios=(8, 4, 2, 1))),
    ),
}
NOISE_IMAGES = 25_600  # of a run of the earlier evidence
DRAWS = 0, 1, 2, 3, 4

CLAIMS = {
    'noise': Claim(
        'Longer runs of one network differ less between seeds.',
        'none; it fixes the length of the other runs',
        networks={
            f'{times} x': replace(INTERACTION['dense 2'], images=times * NOISE_IMAGES)
            for times in (1, 2, 4, 8, 16)
        },
    ),
    'interaction': Claim(
        'Interaction between heads raises the accuracy, and the more heads, the more.',
        f'{IVIT}, Table 8 and Figure 6',
        networks=INTERACTION,
        alike=(tuple(INTERACTION),),
        comparisons=pairs(
            ('mixed 2', 'dense 2'),
            ('mixed 8', 'dense 8'),
            (
                ('mixed 8', 'dense 2'),
                ('dense 8', 'mixed 2'),
                'the gain at 8 heads against that at 2',
            ),
            ('landmarks mixed 8', 'landmarks 8'),
        ),
    ),
    'heads': Claim(
        'After training, interaction has raised the variance between heads and lowered '
        'their similarity.',
        f'{IVIT}, Figures 6 (b) and 7',
        networks=INTERACTION,
        margin=0.0,
        comparisons=diversities(),
    ),
    'heads as drawn': Claim(
        'Interaction does so before any training.',
        f'{IVIT}, Figures 6 (b) and 7, which show trained networks',
        networks={name: drawn(each, 'diversity') for name, each in INTERACTION.items()},
        metric='similarity',
        seeds=DRAWS,
        margin=0.001,
        comparisons=diversities(),
    ),
    'patterns': Claim(
        'LiSA beats self-attention, global filters and convolution of equal size, and '
        'gains from more patterns.',
        f'{LISA}, Tables 3 (a) and (c)',
        networks=PATTERNS,
        alike=(('LiSA 16', 'attention', 'global filter', 'convolution'),),
        tolerance=0.08,
        comparisons=pairs(
            ('LiSA 16', 'attention'),
            ('LiSA 16', 'global filter'),
            ('LiSA 16', 'convolution'),
            ('LiSA 16', 'LiSA 4'),
        ),
    ),
    'masks': Claim(
        'Masks to neighborhoods raise the accuracy, soft ones most, and random masks '
        'lower it.',
        f'{MAIT}, Tables 3 and 4, section 5.6',
        networks=MASKS,
        alike=(tuple(MASKS),),
        comparisons=pairs(
            ('hard', 'none'), ('soft', 'none'), ('soft', 'hard'), ('none', 'random')
        ),
    ),
    'backbones': Claim(
        'Each backbone beats what its paper compares it with, at equal size and the '
        'best of three learning rates.',
        'the papers of all, in ImageNet',
        networks={
            f'{name} {rate}': Training(backbone, rate=rate, size=56)
            for name, backbone in BACKBONES.items()
            for rate in RATES
        },
        choices={name: tuple(f'{name} {rate}' for rate in RATES) for name in BACKBONES},
        alike=(tuple(f'{name} {RATES[0]}' for name in BACKBONES),),
        tolerance=0.1,
        comparisons=pairs(*BEATEN),
    ),
    'segmentation': Claim(
        'In UperNet, too, on scenes of clothes.',
        'the papers of all, in ADE20K',
        networks={name: upernet(config) for name, config in SEGMENTED},
        metric='mIoU',
        comparisons=pairs(('iViT', 'PVTv2'), ('HyLiSANet', 'PVTv2')),
    ),
    'deformable points': Claim(
        'DAT gains from points that move, where objects lie anywhere.',
        f'{DAT}, ablations',
        networks={
            'moving': upernet('dat_n'),
            'fixed': upernet('dat_n', **{'model.backbone.offsets': False}),
        },
        metric='mIoU',
        comparisons=pairs(('moving', 'fixed')),
    ),
    'Deformable DETR': Claim(
        'Several maps, refinement of boxes and a second stage each help Deformable '
        'DETR, and with one map it learns faster than DETR.',
        'Deformable DETR, https://arxiv.org/abs/2010.04159, Tables 1 and 2',
        networks={
            'dense attention': Demo('configs/evidence/detr_ivit_n_hela.py', 160),
            'one map': detr(refine=False, **ONE_MAP),
            'three maps': detr(refine=False),
            'refinement': detr(refine=True),
            'two stages': detr(refine=True, two_stage=True),
        },
        metric='coco/bbox_mAP',
        margin=0.005,
        seeds=(0, 1, 2),
        comparisons=pairs(
            ('one map', 'dense attention'),
            ('three maps', 'one map'),
            ('refinement', 'three maps'),
            ('two stages', 'refinement'),
        ),
    ),
    'ImageNet start': Claim(
        'After a short training, Mask R-CNN finds nuclei better from ImageNet weights '
        'than from random ones.',
        'the papers take it for granted',
        networks={
            'ImageNet': mask_rcnn(**{'model.backbone.init_cfg': PRETRAINED}),
            'random': mask_rcnn(),
        },
        metric='coco/segm_mAP',
        margin=0.005,
        comparisons=pairs(('ImageNet', 'random', 'masks'))
        + pairs(('ImageNet', 'random', 'boxes'), metric='coco/bbox_mAP'),
    ),
    'donors': Claim(
        'After a short training, a network that starts from the weights of a relative '
        'is better than one that starts at random.',
        'none; see weights.md',
        networks=starts(),
        comparisons=pairs(
            *((f'{name}, donor', f'{name}, random') for name in RELATIVES)
        ),
    ),
    'resolution': Claim(
        'Tested at 44 pixels instead of 28, networks keep their accuracy, and lose '
        'less with landmarks than with dense attention.',
        f'{IVIT}, Table 4, after training at the larger size, which is left out here',
        networks=INTERACTION,
        comparisons=pairs(
            (LARGER, 'landmarks mixed 8', 'landmarks mixed 8: 44 against 28 pixels'),
            (
                (LARGER, 'dense 8'),
                ('landmarks mixed 8', 'dense 8:accuracy@44'),
                'that change against the one of dense 8',
            ),
        ),
    ),
    'rank': Claim(
        'As drawn, maps of LiSA and of mixed heads have higher ranks than those of a '
        'softmax, and landmarks have lower ones.',
        'none; the papers argue with it',
        networks={
            name: drawn(each, 'rank')
            for name, each in (INTERACTION | PATTERNS).items()
            if name not in ('global filter', 'convolution')
        },
        metric='rank',
        seeds=DRAWS,
        margin=0.05,
        comparisons=pairs(
            ('LiSA 16', 'attention'),
            ('LiSA 16', 'LiSA 4'),
            ('mixed 8', 'dense 8'),
            ('landmarks mixed 8', 'landmarks 8'),
            ('dense 8', 'landmarks 8'),
        ),
    ),
    'reach': Claim(
        'As drawn, masks shorten the reach of a token, and random ones do not.',
        f'{MAIT}, section 4',
        networks={name: drawn(each, 'reach') for name, each in REACHES.items()},
        metric='reach',
        seeds=DRAWS,
        margin=0.02,
        comparisons=pairs(
            ('hard', 'none'),
            ('soft', 'none'),
            ('zeros', 'none', 'zeros instead of scores (equation 2) against none'),
            ('random', 'none'),
            lower=True,
        ),
    ),
    'cost': Claim(
        'The FLOPs of landmarks and of LiSA grow less with the number of tokens.',
        f'{IVIT}, Table 4; {LISA}, section 3',
        networks={
            name: drawn((INTERACTION | PATTERNS)[name], 'growth')
            for name in ('dense 8', 'landmarks mixed 8', 'attention', 'LiSA 16')
        },
        metric='growth',
        margin=0.0,
        seeds=(0,),
        exact=True,
        comparisons=pairs(
            ('landmarks mixed 8', 'dense 8'), ('LiSA 16', 'attention'), lower=True
        ),
    ),
}
