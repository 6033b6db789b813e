"""Offsets and positions help deformable attention."""

from tools.evidence.claim import Claim, Comparison, Variant


def dat(**backbone) -> Variant:
    options = {f'model.backbone.{key}': value for key, value in backbone.items()}
    return Variant('configs/evidence/dat_n_fashion_mnist.py', options)


claim = Claim(
    statement='Deformable attention is more accurate with learned offsets than with a '
    'fixed grid of points, and with relative positions than without.',
    source='DAT, https://arxiv.org/abs/2201.00520, ablations',
    image_shape=(1, 28, 28),
    variants={
        'dat': dat(),
        'fixed_points': dat(offsets=False),
        'no_positions': dat(position='none'),
    },
    alike=(('dat', 'fixed_points', 'no_positions'),),
    comparisons=(
        Comparison('offsets against a fixed grid', 'dat', 'fixed_points', smallest=0.2),
        Comparison(
            'relative positions against none', 'dat', 'no_positions', smallest=0.2
        ),
    ),
    notes='One stage of four blocks, two of windows and two of deformable attention, '
    'on 7 x 7 tokens, and 800 iterations of 32 images.',
)
