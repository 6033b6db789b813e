"""Configs give each parameter the learning rate and weight decay of their authors."""

import re

import pytest
from config_files import load
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmattn.analysis.flops import build

TABLES = re.compile(
    r'\.(pos_embed|bias|w[12](_[qk])?|(cls|dist)_token|\w+_bias_table|rpe_table|rpb)$'
)
SLOW = re.compile(r'^backbone\.|\.sampling_offsets\.|^decoder\.reference_points\.')
NORMS = nn.LayerNorm | nn.GroupNorm | _BatchNorm


# Each returns the factor of the learning rate, and whether the parameter decays.
def ours(name, parameter, module):
    return 1, parameter.ndim > 1 and not TABLES.search(name)


def all_alike(name, parameter, module):
    return 1, True


def but_norms(name, parameter, module):
    return 1, not isinstance(module, NORMS)


def deformable_detr(name, parameter, module):
    return 0.1 if SLOW.search(name) else 1, True


def dino(name, parameter, module):
    return 0.1 if name.startswith('backbone.') else 1, True


def mask2former(name, parameter, module):
    """The pixel decoder's level embedding is no `nn.Embedding` there, and decays."""
    if name.startswith('backbone.'):
        return 0.1, True
    return 1, not isinstance(module, NORMS | nn.Embedding)


def segformer(name, parameter, module):
    """The norms of the head decay."""
    if name.startswith('decode_head.'):
        return 10, True
    return 1, not isinstance(module, NORMS)


RULES = {
    'classification/ivit_t_300e_in1k': ours,
    'classification/vit_t16_imhsa_300e_in1k': ours,
    'classification/vit_t16_interaction_300e_in1k': ours,
    'classification/lisanet_i_150e_in1k': ours,
    'classification/mait_xt_distilled_400e_in1k': ours,
    'classification/masked_cait_xxs24_400e_in1k': ours,
    'classification/pvt_t_300e_in1k': ours,
    'classification/dat_t_300e_in1k': ours,
    'mask_rcnn/dat_plus_plus_t_1x_coco': ours,
    'upernet/hmait_t_160k_ade20k': ours,
    'retinanet/pvt_t_1x_coco': all_alike,
    'sparse_rcnn/pvt_v2_b2_li_3x_coco': all_alike,
    'cascade_mask_rcnn/pvt_v2_b2_li_3x_coco': but_norms,
    'deformable_detr/r50_50e_coco': deformable_detr,
    'deformable_detr/dat_plus_plus_t_two_stage_50e_coco': deformable_detr,
    'dino/dat_plus_plus_t_12e_coco': dino,
    'mask2former/pvt_v2_b2_160k_ade20k': mask2former,
    'segformer/pvt_v2_mit_b0_160k_ade20k': segformer,
    'segformer/ivit_t_160k_ade20k': segformer,
}


def groups(name: str):
    """Return a config's model, and the group of each parameter, by its id."""
    cfg = load(name)
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    return model, {id(p): g for g in optimizer.param_groups for p in g['params']}


@pytest.mark.parametrize('name, rule', RULES.items(), ids=RULES)
def test_rates_and_decays_of_parameters(name, rule):
    model, by_parameter = groups(name)
    settings = load(name).optim_wrapper.optimizer
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.requires_grad:
                group = by_parameter[id(parameter)]
                rate, decays = rule(key, parameter, module)
                assert group['lr'] == pytest.approx(rate * settings.lr), key
                assert group['weight_decay'] == decays * settings.weight_decay, key


@pytest.mark.parametrize('size', ['s', 'b'])
def test_learning_rates_from_in21k_fall_to_those_of_convnext(size):
    name = f'classification/lisanet_hybrid_{size}_in21k_30e_in1k'
    rates = [group['lr'] for group in groups(name)[1].values()]
    assert max(rates) == 5e-5
    assert min(rates) / max(rates) == pytest.approx(0.8**13, rel=0.02)
