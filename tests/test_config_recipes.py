"""Configs have the hyper-parameters that the papers print."""

import re
from pathlib import Path

import pytest

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

import generate_model_zoo as model_zoo  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from paper_recipes import GPUS, PAPER  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402

ROOT = Path(__file__).parents[1]


def load(name: str) -> Config:
    """A config that several tests share."""
    return model_zoo.load(ROOT / 'configs' / f'{name}.py')


def test_every_config_of_a_paper_is_in_the_table():
    configs = [
        Path(model['Config']).with_suffix('')
        for metafile in model_zoo.metafiles()
        for model in model_zoo.read_models(metafile)
    ]
    assert {str(path.relative_to('configs')) for path in configs} == set(PAPER)


@pytest.mark.parametrize('name', PAPER)
def test_hyper_parameters_are_the_papers(name):
    optimizer, lr, decay, batch, length, warmup, drop_path = PAPER[name]
    cfg = load(name)
    assert cfg.optim_wrapper.optimizer.type == optimizer
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(lr)
    assert cfg.optim_wrapper.optimizer.weight_decay == decay
    assert cfg.auto_scale_lr.base_batch_size == batch
    assert cfg.train_dataloader.batch_size * GPUS.get(name, 8) == batch
    assert cfg.model.backbone.get('drop_path_rate') == drop_path
    *warmups, last = cfg.param_scheduler
    loop = cfg.train_cfg
    assert last.end == loop.get('max_epochs', loop.get('max_iters')) == length
    if warmup is not None:
        assert sum(scheduler.end for scheduler in warmups) == last.begin == warmup
        assert last.type == 'CosineAnnealingLR'
        assert last.begin + last.T_max == last.end


@pytest.mark.parametrize(
    'name, mixes, repeats, classes',
    [
        ('ivit_t_300e_in1k', True, False, 1000),
        ('lisanet_i_150e_in1k', True, True, 1000),
        ('lisanet_i_384_30e_in1k', True, True, 1000),
        ('hylisanet_b_300e_in1k', True, True, 1000),
        ('hylisanet_b_90e_in21k', True, False, 21841),
        ('hylisanet_b_in21k_30e_in1k', False, False, 1000),
        ('mait_xs_400e_in1k', True, True, 1000),
        ('mait_xt_distilled_400e_in1k', True, True, 1000),
        ('masked_cait_xxs24_400e_in1k', True, True, 1000),
        ('hmait_t_300e_in1k', True, False, 1000),
        ('pvt_t_300e_in1k', True, True, 1000),
        ('pvtv2_b0_300e_in1k', True, True, 1000),
        ('dat_t_300e_in1k', True, False, 1000),
        ('dat_b_384_30e_in1k', True, False, 1000),
        ('datpp_t_300e_in1k', True, False, 1000),
    ],
)
def test_classification_augmentation_is_the_papers(name, mixes, repeats, classes):
    cfg = load(f'classification/{name}')
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    rand_augment = steps['RandAugment']
    assert (rand_augment.magnitude_level, rand_augment.magnitude_std) == (9, 0.5)
    assert steps['RandomErasing'].erase_prob == 0.25
    sampler = cfg.train_dataloader.sampler.type
    assert sampler == ('RepeatAugSampler' if repeats else 'DefaultSampler')
    classifier = build(cfg)
    mixed = classifier.data_preprocessor.batch_augments
    augments = {type(a).__name__: a.alpha for a in mixed.augments} if mixed else {}
    assert augments == ({'Mixup': 0.8, 'CutMix': 1.0} if mixes else {})
    assert classifier.head.loss_module.label_smooth_val == 0.1
    assert classifier.head.num_classes == classes
    assert classifier.data_preprocessor.num_classes == classes


@pytest.mark.parametrize('size', ['s', 'b'])
def test_learning_rates_from_in21k_fall_to_those_of_convnext(size):
    cfg = load(f'classification/hylisanet_{size}_in21k_30e_in1k')
    init_default_scope(cfg.default_scope)
    wrapper = build_optim_wrapper(build(cfg), cfg.optim_wrapper)
    rates = [group['lr'] for group in wrapper.optimizer.param_groups]
    assert max(rates) == 5e-5
    assert min(rates) / max(rates) == pytest.approx(0.8**13, rel=0.02)


@pytest.mark.parametrize(
    'name',
    [
        'classification/ivit_t_300e_in1k',
        'classification/vit_t16_imhsa_300e_in1k',
        'classification/lisanet_i_150e_in1k',
        'classification/hylisanet_s_90e_in21k',
        'mask_rcnn/ivit_t_3x_coco',
        'mask_rcnn/hylisanet_s_1x_coco',
        'upernet/ivit_t_160k_ade20k',
        'classification/mait_xs_400e_in1k',
        'classification/mait_xt_distilled_400e_in1k',
        'classification/masked_cait_xxs24_400e_in1k',
        'classification/hmait_t_300e_in1k',
        'mask_rcnn/hmait_t_1x_coco',
        'upernet/hmait_t_160k_ade20k',
        'classification/pvt_t_300e_in1k',
        'classification/dat_t_300e_in1k',
        'mask_rcnn/datpp_t_1x_coco',
        'sem_fpn/dat_t_80k_ade20k',
    ],
)
def test_weight_decay_spares_norms_biases_scales_tables_and_mixing_weights(name):
    cfg = load(name)
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decay = {
        id(parameter): group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    for parameter_name, parameter in model.named_parameters():
        exempt = re.search(
            r'\.(pos_embed|bias|w[12]_[qk]|(cls|dist)_token|\w+_bias_table|rpe_table|rpb)$',
            parameter_name,
        )
        spared = parameter.ndim <= 1 or exempt
        expected = 0 if spared else cfg.optim_wrapper.optimizer.weight_decay
        assert decay[id(parameter)] == expected, parameter_name


# Section 5.3, Tables 3 to 7, Figure 3 and Table 8 of arXiv 2207.03006: layers, masked
# heads by layer, whether the masks are soft, their width, LayerScale, constant
# stochastic depth. What the paper does not say is as the READMEs say.
SCH2_T = [2] * 8 + [1] * 12 + [0] * 4
SOFT = [3] * 21 + [0] * 3
MASKS = {
    'mait_xt': (24, SOFT, True, 3, True, False),
    'mait_xt_distilled': (24, SOFT, True, 3, False, False),
    'mait_t': (24, SOFT, True, 3, False, False),
    'mait_xs': (24, SCH2_T, False, 3, True, False),
    'mait_s': (24, [5] * 8 + [1] * 12 + [0] * 4, False, 3, True, True),
    'mait_t_sch1': (24, [1] * 24, False, 3, False, False),
    'mait_t_sch2': (24, SCH2_T, False, 3, False, False),
    'mait_t_soft': (24, SOFT, True, 3, False, False),
    'mait_xs_sch1': (24, [1] * 24, False, 3, False, False),
    'mait_xs_sch2': (24, SCH2_T, False, 3, False, False),
    'mait_xs_soft': (24, SOFT, True, 3, False, False),
    'mait_t_36l': (36, [3] * 12 + [1] * 24, False, 3, False, False),
    'mait_t_12l_soft': (12, [3] * 11 + [0], True, 3, False, False),
    'mait_s_12l_soft': (12, [6] * 11 + [0], True, 3, False, False),
    'mait_t_12l_sch1': (12, [1] * 12, False, 3, False, False),
    'mait_s_12l_sch1_r5': (12, [1] * 12, False, 5, False, False),
}


@pytest.mark.parametrize('name', MASKS)
def test_masks_are_the_papers(name):
    layers, masked, soft, width, layer_scale, constant = MASKS[name]
    (path,) = (ROOT / 'configs/classification').glob(f'{name}_[34]00e_in1k.py')
    backbone = build(model_zoo.load(path)).backbone
    attentions = [block.attn for block in backbone.blocks]
    assert len(attentions) == layers
    assert [len(attention.masked_heads) for attention in attentions] == masked
    for attention in filter(lambda a: a.masked_heads, attentions):
        assert (attention.alpha_logit is not None) == soft
        assert attention.kernel_size == width
    names = dict(backbone.named_parameters())
    assert ('blocks.0.ls1.gamma' in names) == layer_scale
    assert ('dist_token' in names) == ('distilled' in name)
    rates = {block.drop_path.drop_prob for block in backbone.blocks}
    assert (len(rates) == 1 and max(rates) > 0) == constant


@pytest.mark.parametrize('size', ['t', 's'])
def test_hmait_has_swins_clipping_and_half_its_rates(size):
    cfg = load(f'classification/hmait_{size}_300e_in1k')
    assert cfg.optim_wrapper.clip_grad.max_norm == 5.0
    first, last = cfg.param_scheduler
    assert first.start_factor * cfg.optim_wrapper.optimizer.lr == 5e-7
    assert last.eta_min == 5e-6
