"""Configs give parameters the rates, weight decays and masks that the papers print."""

import re

import pytest

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import ROOT, load, parameter_groups  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402


@pytest.mark.parametrize('size', ['s', 'b'])
def test_learning_rates_from_in21k_fall_to_those_of_convnext(size):
    cfg = load(f'classification/hylisanet_{size}_in21k_30e_in1k')
    rates = [group['lr'] for group in parameter_groups(cfg)[1].values()]
    assert max(rates) == 5e-5
    assert min(rates) / max(rates) == pytest.approx(0.8**13, rel=0.02)


@pytest.mark.parametrize(
    'name',
    [
        'classification/ivit_t_300e_in1k',
        'classification/vit_t16_imhsa_300e_in1k',
        'classification/vit_t16_interaction_300e_in1k',
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
    model, groups = parameter_groups(cfg)
    for parameter_name, parameter in model.named_parameters():
        exempt = re.search(
            r'\.(pos_embed|bias|w[12](_[qk])?|(cls|dist)_token|\w+_bias_table|rpe_table|rpb)$',
            parameter_name,
        )
        spared = parameter.ndim <= 1 or exempt
        expected = 0 if spared else cfg.optim_wrapper.optimizer.weight_decay
        assert groups[id(parameter)]['weight_decay'] == expected, parameter_name


# Layers, masked heads by layer, soft masks, their width, LayerScale, constant
# stochastic depth. Sources are section 5.3, Tables 3 to 8 and Figure 3 of arXiv
# 2207.03006; the READMEs say what the paper leaves open.
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
    'mait_t_36l_sch1': (36, [1] * 36, False, 3, False, False),
    'deit_t_36l': (36, [0] * 36, False, 3, False, False),
    'mait_t_12l_soft': (12, [3] * 11 + [0], True, 3, False, False),
    'mait_s_12l_soft': (12, [6] * 11 + [0], True, 3, False, False),
    'mait_t_12l_sch1': (12, [1] * 12, False, 3, False, False),
    'mait_s_12l_sch1_r5': (12, [1] * 12, False, 5, False, False),
}


@pytest.mark.parametrize('name', MASKS)
def test_masks_are_the_papers(name):
    layers, masked, soft, width, layer_scale, constant = MASKS[name]
    (path,) = (ROOT / 'configs/classification').glob(f'{name}_[34]00e_in1k.py')
    backbone = build(load(f'classification/{path.stem}')).backbone
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
