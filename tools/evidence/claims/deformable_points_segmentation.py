"""Moving points and positions help the deformable attention of DAT."""

from tools.evidence.claim import Claim, Comparison
from tools.evidence.demos import (
    SCENE_ITERATIONS,
    SCENE_SIDE,
    SMALL_SCENES,
    SMALL_SCENES_NOTE,
    demo_variant,
)

CONFIG = 'configs/demo/upernet_dat_n_fashion_scenes.py'


def dat(**backbone):
    options = {f'model.backbone.{key}': value for key, value in backbone.items()}
    options['model.backbone.img_size'] = SCENE_SIDE
    return demo_variant(CONFIG, SCENE_ITERATIONS, options | SMALL_SCENES)


claim = Claim(
    statement='DAT is better with points that move than with a fixed grid, and with a '
    'table of relative positions than without positions.',
    source='DAT, https://arxiv.org/abs/2201.00520, ablations',
    image_shape=(SCENE_SIDE, SCENE_SIDE),
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
    notes=f'UperNet and DAT-nano. {SMALL_SCENES_NOTE}',
)
