"""Interaction makes the heads of a layer differ more."""

from tools.evidence.claim import Claim, Comparison, load_claim

PAIRS = ('interaction_8', 'mhsa_8'), ('both_8', 'decomposition_8')
NAMES = {
    'interaction_8': 'interaction against none',
    'both_8': 'interaction with decomposition against decomposition alone',
}

claim = Claim(
    statement='Interaction raises the variance of the attention maps and lowers the '
    'similarity between heads.',
    source='iMHSA, https://arxiv.org/abs/2402.17507, Figures 6 (b) and 7',
    image_shape=(1, 28, 28),
    variants={
        name: variant
        for name, variant in load_claim('interaction').variants.items()
        if name.endswith('_8')
    },
    measurements=('head_diversity',),
    comparisons=tuple(
        Comparison(f'{NAMES[better]}: {text}', better, worse, metric, lower)
        for better, worse in PAIRS
        for metric, text, lower in (
            ('head_variance', 'variance between heads', False),
            ('map_variance', 'variance within a map', False),
            ('similarity', 'similarity of heads, lower', True),
        )
    ),
    notes='The trained networks of [interaction](interaction.md), on 64 test images. '
    'The paper has no equations for its figures. `mmattn.analysis.head_diversity` '
    'defines both readings of the variance. Landmark attention is measured by the '
    'product of its two matrices.',
)
