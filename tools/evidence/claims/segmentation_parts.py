"""Changes of HyLiSANet in UperNet, one at a time."""

from dataclasses import replace

from tools.evidence.claim import Claim, Comparison, load_claim

# HyLiSANet-nano with convolution blocks in all stages.
CONVOLUTIONS = dict(
    _delete_=True,
    embed_dims=(32, 64, 160, 256),
    depths=(2, 2, 6, 2),
    mlp_ratios=(4, 4, 3, 3),
    conv_stages=4,
    patterns=8,
)

whole = load_claim('backbones_segmentation')
hylisanet = whole.variants['hylisanet']


def changed(**options):
    return replace(hylisanet, options={**hylisanet.options, **options})


claim = Claim(
    statement='HyLiSANet gains from LiSA in its last two stages, and the learning rate '
    'that all networks share suits it better than half or twice of it.',
    source='none; it takes [backbones in UperNet](backbones_segmentation.md) apart',
    image_shape=whole.image_shape,
    metric=whole.metric,
    variants={
        'hylisanet': hylisanet,
        'convolutions': changed(**{'model.backbone.arch': CONVOLUTIONS}),
        'half_rate': changed(**{'optim_wrapper.optimizer.lr': 5e-4}),
        'double_rate': changed(**{'optim_wrapper.optimizer.lr': 2e-3}),
    },
    alike=(('hylisanet', 'convolutions', 'half_rate', 'double_rate'),),
    comparisons=(
        Comparison(
            'LiSA against convolution blocks in stages 3 and 4',
            'hylisanet',
            'convolutions',
        ),
        Comparison('the shared learning rate against half', 'hylisanet', 'half_rate'),
        Comparison('the shared one against twice', 'hylisanet', 'double_rate'),
    ),
    notes=whole.notes.partition(' Land cover')[0]
    + ' [The analysis](../hylisanet.md) reads the result.',
)
