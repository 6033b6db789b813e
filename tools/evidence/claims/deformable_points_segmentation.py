"""Moving points and positions help the deformable attention of DAT."""

from claim import Claim, Comparison
from demos import demo_variant

ITERATIONS = 600
CONFIG = 'configs/demo/upernet_dat_n_fashion_scenes.py'


def dat(**backbone):
    options = {f'model.backbone.{key}': value for key, value in backbone.items()}
    return demo_variant(CONFIG, ITERATIONS, options)


claim = Claim(
    statement='DAT is better with points that move than with a fixed grid, and with a '
    'table of relative positions than without positions.',
    source='DAT, https://arxiv.org/abs/2201.00520, ablations',
    image_shape=(128, 128),
    metric='mIoU',
    variants={
        'dat': dat(),
        'fixed_points': dat(offsets=False),
        'no_positions': dat(position='none'),
        'convolution_positions': dat(position='dwc'),
    },
    alike=(('dat', 'fixed_points', 'no_positions', 'convolution_positions'),),
    comparisons=(
        Comparison('moving points against a fixed grid', 'dat', 'fixed_points'),
        Comparison(
            'a table of relative positions against none',
            'dat',
            'no_positions',
        ),
        Comparison(
            'a table of relative positions against a convolution',
            'dat',
            'convolution_positions',
        ),
    ),
    notes='UperNet and DAT-nano on scenes of Fashion-MNIST '
    f'(`tools/datasets/fashion_scenes.py`), {ITERATIONS} iterations of 4 images.',
)
