"""LiSA beats self-attention and global filters, and grows with its patterns."""

from tools.evidence.claim import Claim, Comparison, Variant


def lisanet(mixer: str = 'lisa', **backbone) -> Variant:
    options = {'model.backbone.mixer': mixer}
    options |= {f'model.backbone.{key}': value for key, value in backbone.items()}
    if 'embed_dims' in backbone:
        options['model.head.in_channels'] = backbone['embed_dims']
    return Variant('configs/evidence/lisanet_n_fashion_mnist.py', options)


claim = Claim(
    statement='LiSA is more accurate than self-attention and global filters (GF) of '
    'equal size, and its accuracy grows with the number of structural patterns.',
    source='LiSA, https://arxiv.org/abs/2211.16289, Tables 3 (a) and (c)',
    image_shape=(1, 28, 28),
    variants={
        'lisa_16': lisanet(),
        'lisa_4': lisanet(patterns=4),
        'lisa_1': lisanet(patterns=1),
        'self_attention': lisanet('self_attention_rpe', embed_dims=60, num_heads=4),
        'global_filter': lisanet('global_filter', embed_dims=64),
    },
    alike=(('lisa_16', 'self_attention', 'global_filter'),),
    tolerance=0.07,
    comparisons=(
        Comparison(
            'LiSA against self-attention with relative positions and more channels '
            '(ImageNet: +1.5)',
            'lisa_16',
            'self_attention',
            smallest=0.5,
        ),
        Comparison(
            'LiSA against GF with more channels (ImageNet: +2.5)',
            'lisa_16',
            'global_filter',
            smallest=0.5,
        ),
        Comparison(
            '16 patterns against 4 (ImageNet: +1.3)', 'lisa_16', 'lisa_4', smallest=0.5
        ),
        Comparison(
            '4 patterns against 1 (ImageNet: +2.3)', 'lisa_4', 'lisa_1', smallest=0.5
        ),
    ),
    notes='Four layers of 48 channels on 7 x 7 tokens, and 800 iterations of 32 '
    'images. The kernels of LiSA have more parameters than the projections of so '
    'narrow a network, so the other two have more channels, as the paper also compares '
    'them.',
)
