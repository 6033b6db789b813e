"""Describe each config's learning rates, by pattern, and what its optimizer spares.

The papers' files have rates, decay, batch and length; this is the rest. Sources are
named beside the rows. Where a paper names none, the source is the code that its recipe
refers to: DeiT (`main.py`: rates from 1e-6 to 1e-5), Swin (`config.py`;
`mask_rcnn_swin_*`, `upernet_swin_*`), CAFormer, ConvNeXt, PVT, DAT-Detection and
DAT-Segmentation.
"""

import re

from config_files import RECIPES
from recipe_images import first


def cosine(end: float, per_iteration: bool = False) -> dict:
    steps = dict(convert_to_iter_based=True) if per_iteration else {}
    return dict(type='CosineAnnealingLR', eta_min=end, **steps)


def steps(*milestones: int) -> dict:
    return dict(type='MultiStepLR', milestones=milestones, gamma=0.1)


def poly(power: float) -> dict:
    return dict(type='PolyLR', power=power, eta_min=0)


# The layers themselves exempt norms, biases, scales and tables from decay.
OURS = dict(constructor='mmattn.LayerDecayOptimWrapperConstructor')
NORMS = dict(paramwise_cfg=dict(norm_decay_mult=0))
TENTH = dict(lr_mult=0.1)
NO_DECAY = dict(decay_mult=0)
BACKBONE_TENTH = dict(paramwise_cfg=dict(custom_keys=dict(backbone=TENTH)))
DETR = dict(
    paramwise_cfg=dict(
        custom_keys=dict(backbone=TENTH, sampling_offsets=TENTH, reference_points=TENTH)
    )
)
MASK2FORMER = dict(
    paramwise_cfg=dict(
        norm_decay_mult=0,
        custom_keys={
            'backbone': TENTH,
            'query_embed': NO_DECAY,
            'query_feat': NO_DECAY,
            'decode_head.level_embed': NO_DECAY,
        },
    )
)


def clip(norm: float, **settings) -> dict:
    return dict(clip_grad=dict(max_norm=norm, **settings))


def layer_decay(rate: float) -> dict:
    return OURS | dict(paramwise_cfg=dict(layer_decay_rate=rate))


CAFORMERS = cosine(1e-5)
DEITS = SWINS = cosine(1e-5)
CONVNEXTS = dict(
    type='CosineAnnealingLR', eta_min_ratio=0.02, convert_to_iter_based=True
)
ONE_X, THREE_X = steps(8, 11), steps(27, 33)
# By pattern; the first that matches counts. A row has the factor that the warm-up
# starts at, its iterations where the paper's file leaves them open, the decay, and the
# other settings of the optimizer.
SCHEDULES = {
    'classification/ivit_*': (1e-6 / 8e-3, None, CAFORMERS, OURS),
    'classification/hmait_*': (5e-7 / 5e-4, None, cosine(5e-6), OURS | clip(5)),
    'classification/vit_*_300e_*': (1e-3, None, DEITS, OURS),
    # Table 9 of iViT; the README gives the start and the end.
    'classification/vit_*_30e_*': (1e-3, None, cosine(0), OURS),
    'classification/lisanet_i_384_*': (1e-3, None, cosine(0), OURS),
    'classification/hylisanet_*_90e_*': (1e-6, None, cosine(1e-6, True), OURS),
    # ConvNeXt's 0.8 for each of 12 groups, spread over 25 and 36 blocks.
    'classification/hylisanet_s_*_30e_*': (
        None,
        0,
        CONVNEXTS,
        OURS | layer_decay(0.895),
    ),
    'classification/hylisanet_b_*_30e_*': (
        None,
        0,
        CONVNEXTS,
        OURS | layer_decay(0.925),
    ),
    'classification/*lisanet_*': (1e-3, None, SWINS, OURS),
    # `main_swin.py` of DAT clips at 5, and B at 1; PVT's scripts clip large sizes at 1.
    'classification/dat_b_300e_*': (1e-6 / 8e-4, None, SWINS, OURS | clip(1)),
    'classification/dat_b_384_*': (None, 0, cosine(1e-7, True), OURS | clip(5)),
    'classification/datpp_b_384_*': (None, 0, cosine(2e-7, True), OURS | clip(5)),
    'classification/dat*': (1e-3, None, SWINS, OURS | clip(5)),
    'classification/pvt_[ml]_*': (1e-3, None, DEITS, OURS | clip(1)),
    'classification/pvtv2_b[345]_*': (1e-3, None, DEITS, OURS | clip(1)),
    'classification/*': (1e-3, None, DEITS, OURS),  # PVT, MaiT, DeiT and CaiT
    'detr/*': (None, 0, steps(33), BACKBONE_TENTH | clip(0.1, norm_type=2)),
    'deformable_detr/*': (None, 0, steps(40), DETR | clip(0.1, norm_type=2)),
    'sparse_rcnn/pvtv2_*': (1e-3, 500, THREE_X, dict(paramwise_cfg=None) | clip(1)),
    '*/pvt*_1x_coco': (1e-3, 500, ONE_X, {}),
    '*/pvt*_3x_coco': (1e-3, 500, THREE_X, NORMS),
    '*/datpp_*_1x_coco': (1e-3, 500, ONE_X, OURS),
    '*/datpp_*_3x_coco': (1e-3, 500, THREE_X, OURS),
    '*_1x_coco': (1e-3, 1000, ONE_X, OURS),  # Swin's
    '*_3x_coco': (1e-3, 1000, THREE_X, OURS),
    # Appendix A.2 of LiSA has a cosine; the rest is PVT's.
    'sem_fpn/*lisanet_*': (None, 0, cosine(0), OURS),
    'sem_fpn/pvt*': (None, 0, poly(0.9), {}),
    'sem_fpn/dat*': (None, 0, poly(0.9), OURS),
    'upernet/*': (1e-6, 1500, poly(1), OURS),  # Swin's
    'mask2former/*': (None, 0, poly(0.9), MASK2FORMER | clip(0.01, norm_type=2)),
}


def schedule(name: str) -> dict:
    """Return the loop, the optimizer and the schedulers of a config."""
    recipe = RECIPES[name]
    length, epochs_of_warmup = recipe['length'], recipe['warmup']
    factor, iterations, fall, settings = first(SCHEDULES, name)
    epochs = 'ade20k' not in name
    start = iterations if epochs_of_warmup is None else epochs_of_warmup
    in_epochs = epochs_of_warmup is not None and epochs
    # Steps of detectors count from the first epoch, also during a warm-up.
    begin = 0 if fall['type'] == 'MultiStepLR' else start
    fall = dict(by_epoch=epochs, begin=begin, end=length) | fall
    if fall['type'] == 'CosineAnnealingLR':
        fall['T_max'] = length - begin
    schedulers = (fall,)
    if start:
        warmup = dict(type='LinearLR', start_factor=factor, begin=0, end=start)
        warmup |= dict(by_epoch=in_epochs)
        warmup |= dict(convert_to_iter_based=True) if in_epochs else {}
        schedulers = (warmup, fall)
    loop = (
        dict(type='EpochBasedTrainLoop', max_epochs=length)
        if epochs
        else dict(type='IterBasedTrainLoop', max_iters=length)
    )
    tests = dict(val_cfg=dict(type='ValLoop'), test_cfg=dict(type='TestLoop'))
    if name.endswith('_in21k'):  # it has no split for them
        tests = {}
    return tests | dict(
        train_cfg=loop,
        optim_wrapper=dict(
            type='OptimWrapper',
            optimizer=dict(
                type=recipe['optimizer'],
                lr=recipe['lr'],
                weight_decay=recipe['weight_decay'],
            ),
            **settings,
        ),
        param_scheduler=schedulers,
        auto_scale_lr=dict(enable=False, base_batch_size=recipe['batch']),
    )


def start(name: str) -> str | None:
    """Return the checkpoint that a fine-tuning starts from, or None."""
    if found := re.fullmatch(r'classification/(\w+)_in21k_30e_in1k', name):
        return f'work_dirs/{found[1]}_90e_in21k/epoch_90.pth'
    if found := re.fullmatch(r'classification/(\w+)_\d{3}_30e_in1k', name):
        epochs = 150 if found[1] == 'lisanet_i' else 300
        return f'work_dirs/{found[1]}_{epochs}e_in1k/epoch_{epochs}.pth'
    return None
