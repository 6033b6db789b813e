"""The claims, by name. `docs/evidence/README.md` has the results."""

from dataclasses import replace

from projects.evidence.claim import Claim, Comparison
from projects.evidence.demo import Demo
from projects.evidence.networks import (
    BACKBONES,
    INTERACTION,
    MASKS,
    ONE_MAP,
    PATTERNS,
    PRETRAINED,
    RATES,
    REACHES,
    RELATIVES,
    deformable,
    detr,
    drawn,
    mask_rcnn,
    starts,
)
from projects.evidence.training import Training

IVIT = 'https://arxiv.org/abs/2402.17507'
LISA = 'https://arxiv.org/abs/2211.16289'
MAIT = 'https://arxiv.org/abs/2207.03006'
DAT = 'https://arxiv.org/abs/2201.00520'
DETR = 'https://arxiv.org/abs/2010.04159'


def pairs(
    *texts: tuple, metric: str | None = None, lower: bool = False
) -> tuple[Comparison, ...]:
    """Return comparisons of (better, worse) or (better, worse, text)."""
    found = []
    for better, worse, *text in texts:
        difference = f'{worse} − {better}' if lower else f'{better} − {worse}'
        found.append(Comparison(*(text or [difference]), better, worse, metric, lower))
    return tuple(found)


def diversities() -> tuple[Comparison, ...]:
    """Compare heads that interact with heads that do not."""
    return tuple(
        Comparison(f'{name}{where}: {text}', *networks, metric, lower)
        for where, networks in (
            ('', ('mixed 8', 'dense 8')),
            (', landmarks', ('landmarks mixed 8', 'landmarks 8')),
        )
        for name, metric, lower, text in (
            ('variance', 'head_variance', False, 'mixed − not'),
            ('similarity', 'similarity', True, 'not − mixed'),
        )
    )


BEATEN = (
    ('iViT', 'PVTv2'),
    ('iViT', 'ConvNeXt'),
    ('HyLiSANet', 'PVTv2'),
    ('HyLiSANet', 'ConvNeXt'),
    ('H-MaiT', 'Swin'),
    ('DAT++', 'Swin'),
)
LARGER = 'landmarks mixed 8:accuracy@44'
NOISE_IMAGES = 25_600  # of a run of the earlier evidence
SIX, TWELVE = tuple(range(6)), tuple(range(12))  # seeds, fixed before the last runs

CLAIMS = {
    'noise': Claim(
        'How much runs of a length differ between seeds.',
        networks={
            f'{times} x': replace(INTERACTION['dense 2'], images=times * NOISE_IMAGES)
            for times in (1, 2, 4, 8, 16)
        },
    ),
    'interaction': Claim(
        'Interaction between heads raises the accuracy, and the more heads, the more.',
        f'[iMHSA, Table 8]({IVIT})',
        networks=INTERACTION,
        seeds=TWELVE,
        alike=(tuple(INTERACTION),),
        comparisons=pairs(
            ('mixed 2', 'dense 2'),
            ('mixed 8', 'dense 8'),
            (
                ('mixed 8', 'dense 2'),
                ('dense 8', 'mixed 2'),
                'gain at 8 heads − at 2',
            ),
            ('landmarks mixed 8', 'landmarks 8', 'landmarks: mixed − not'),
        ),
    ),
    'heads': Claim(
        'After training, heads that interact vary more and are less alike.',
        f'[iMHSA, Figure 7]({IVIT})',
        networks=INTERACTION,
        seeds=TWELVE,
        margin=0.0,
        comparisons=diversities(),
    ),
    'heads as drawn': Claim(
        'Interaction does so before any training.',
        networks={name: drawn(each, 'diversity') for name, each in INTERACTION.items()},
        metric='similarity',
        margin=0.001,
        comparisons=diversities(),
    ),
    'patterns': Claim(
        'LiSA beats self-attention, global filters and convolution of equal size, and '
        'gains from more patterns.',
        f'[LiSA, Table 3]({LISA})',
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
        f'[MaiT, Table 3]({MAIT})',
        networks=MASKS,
        seeds=TWELVE,
        alike=(tuple(MASKS),),
        comparisons=pairs(
            ('hard', 'none'), ('soft', 'none'), ('soft', 'hard'), ('none', 'random')
        ),
    ),
    'backbones': Claim(
        "At equal size, each backbone beats its paper's peers.",
        networks={
            f'{name} {rate}': Training(backbone, images=51_200, rate=rate, size=56)
            for name, backbone in BACKBONES.items()
            for rate in RATES
        },
        seeds=TWELVE,
        choices={name: tuple(f'{name} {rate}' for rate in RATES) for name in BACKBONES},
        alike=(tuple(f'{name} {RATES[0]}' for name in BACKBONES),),
        tolerance=0.1,
        comparisons=pairs(*BEATEN),
    ),
    'deformable points': Claim(
        'DAT gains from points that move, where objects lie anywhere.',
        f'[DAT]({DAT})',
        networks={'moving': deformable(True), 'fixed': deformable(False)},
        comparisons=pairs(('moving', 'fixed')),
    ),
    'Deformable DETR': Claim(
        'Several maps, refinement and a second stage help; one map beats DETR.',
        f'[Deformable DETR, Table 1]({DETR})',
        networks={
            'dense attention': Demo('configs/evidence/detr_ivit_n_hela.py', 160),
            'one map': detr(refine=False, **ONE_MAP),
            'three maps': detr(refine=False),
            'refinement': detr(refine=True),
            'two stages': detr(refine=True, two_stage=True),
        },
        metric='coco/bbox_mAP',
        margin=0.005,
        seeds=SIX,
        comparisons=pairs(
            ('one map', 'dense attention'),
            ('three maps', 'one map'),
            ('refinement', 'three maps'),
            ('two stages', 'refinement'),
        ),
    ),
    'ImageNet start': Claim(
        'A short training of Mask R-CNN on nuclei gains from ImageNet weights.',
        networks={
            'ImageNet': mask_rcnn(**{'model.backbone.init_cfg': PRETRAINED}),
            'random': mask_rcnn(),
        },
        metric='coco/segm_mAP',
        seeds=SIX,
        margin=0.005,
        comparisons=pairs(('ImageNet', 'random', 'masks'))
        + pairs(('ImageNet', 'random', 'boxes'), metric='coco/bbox_mAP'),
    ),
    'donors': Claim(
        'Short trainings gain from weights of relatives.',
        '[weights](../weights.md)',
        networks=starts(),
        seeds=TWELVE,
        comparisons=pairs(
            *(
                (f'{name}, donor', f'{name}, random', f'{name}: donor − random')
                for name in RELATIVES
            )
        ),
    ),
    'resolution': Claim(
        'At 44 pixels for 28, networks keep their accuracy, more with landmarks.',
        f'[iMHSA, Table 4]({IVIT})',
        networks=INTERACTION,
        seeds=TWELVE,
        comparisons=pairs(
            (LARGER, 'landmarks mixed 8', 'landmarks mixed 8: 44 − 28 pixels'),
            (
                (LARGER, 'dense 8'),
                ('landmarks mixed 8', 'dense 8:accuracy@44'),
                'its change − dense 8',
            ),
        ),
    ),
    'rank': Claim(
        'As drawn, maps of LiSA and of mixed heads have high ranks, and landmarks low '
        'ones.',
        networks={
            name: drawn(each, 'rank')
            for name, each in (INTERACTION | PATTERNS).items()
            if name not in ('global filter', 'convolution')
        },
        metric='rank',
        margin=0.05,
        comparisons=pairs(
            ('LiSA 16', 'attention'),
            ('LiSA 16', 'LiSA 4'),
            ('mixed 8', 'dense 8'),
            ('landmarks mixed 8', 'landmarks 8', 'landmarks: mixed − not'),
            ('dense 8', 'landmarks 8'),
        ),
    ),
    'reach': Claim(
        'As drawn, masks shorten the reach of a token, and random ones do not.',
        f'[MaiT, section 4]({MAIT})',
        networks={name: drawn(each, 'reach') for name, each in REACHES.items()},
        metric='reach',
        margin=0.02,
        comparisons=pairs(
            ('hard', 'none'),
            ('soft', 'none'),
            ('zeros', 'none'),
            ('none', 'random'),
            lower=True,
        ),
    ),
    'cost': Claim(
        'FLOPs of landmarks and of LiSA grow less with tokens.',
        f'[iMHSA, Table 4]({IVIT}); [LiSA, section 3]({LISA})',
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
