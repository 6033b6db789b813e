"""Derive each config's backbone from its name and the papers."""

import re
from fnmatch import fnmatch

from config_files import RECIPES

SIZES = dict(t='tiny', s='small', m='medium', b='base', l='large', i='isotropic')
MAIT_SIZES = dict(xt='xtiny', t='tiny', xs='xsmall', s='small')
TYPES = {
    'ivit': 'IViT',
    'vit': 'ViT',
    'lisanet': 'LiSANet',
    'hylisanet': 'LiSANet',
    'mait': 'MaiT',
    'hmait': 'HMaiT',
    'masked_cait': 'MaskedCaiT',
    'deit': 'MaiT',
    'cait': 'MaskedCaiT',
    'pvt': 'PVT',
    'pvtv2': 'PVTv2',
    'dat': 'DAT',
    'datp': 'DATPlusPlus',
    'datpp': 'DATPlusPlus',
}
LAST_MAP = dict(out_indices=3)
CLASS_TOKEN = dict(out_type='cls_token')
# The MLP of CAFormer's classifier has a norm of its own.
WITHOUT_NORM = LAST_MAP | dict(out_norm=False)
PRINTED = dict(attention='imhsa', interact_expand=1, local_kernel=None, gate=False)
SCALED = dict(layer_scale=1e-5)  # CaiT's for 24 layers
# Settings by pattern; all that match apply. Sources are sections 5.2 to 5.6 and Tables
# 3 to 7 of MaiT, and the needs of classifiers.
SETTINGS = {
    'classification/ivit_*': WITHOUT_NORM,
    'classification/*lisanet_[sb]_*': WITHOUT_NORM,
    'classification/vit_*_mhsa_*': dict(attention='mhsa'),
    'classification/vit_*_imhsa_*': dict(attention='imhsa'),
    # The factors of Table 8 alone: equations 5, 6 and 7 as printed.
    'classification/vit_*_interaction_*': dict(
        attention='mhsa_interaction', interact_expand=1
    ),
    'classification/vit_*_decomposition_*': PRINTED | dict(interact_expand=None),
    'classification/vit_*_decomposition_interaction_*': PRINTED,
    'classification/vit_[ts]16_*': dict(patch_size=16),
    'classification/vit_t8_*': dict(patch_size=8),
    'classification/hmait_*': LAST_MAP,
    'classification/pvtv2_*': LAST_MAP,
    'classification/dat*': LAST_MAP,
    'classification/datp_*': dict(lpu=False, conv_mlp=False, conv_stem=False),
    'classification/mait_*': CLASS_TOKEN,
    'classification/masked_cait_*': CLASS_TOKEN | dict(masking='sch1'),
    'classification/deit_*': CLASS_TOKEN | dict(masking='none'),
    'classification/deit_*_12l_*': dict(depth=12),
    'classification/deit_*_36l_*': dict(depth=36),
    'classification/cait_*': CLASS_TOKEN | dict(masking='none'),
    'classification/pvt_*': CLASS_TOKEN,
    'classification/mait_xt*': dict(masking='soft'),
    'classification/mait_xt_400e_*': SCALED,
    'classification/mait_xt_distilled_*': dict(distilled=True),
    'classification/mait_t_400e_*': dict(masking='soft'),
    'classification/mait_xs_400e_*': SCALED | dict(masking='sch2'),
    'classification/mait_s_400e_*': SCALED
    | dict(masking='sch2', drop_path_schedule='constant'),
    'classification/mait_*_sch1_*': dict(masking='sch1'),
    'classification/mait_*_sch2_*': dict(masking='sch2'),
    'classification/mait_*_soft_*': dict(masking='soft'),
    'classification/mait_*_12l_*': dict(depth=12),
    'classification/mait_*_r5_*': dict(kernel_size=5),
    'classification/mait_t_36l_*': dict(depth=36, masking=(3,) * 12 + (1,) * 24),
    'classification/mait_t_36l_sch1_*': dict(masking='sch1'),
    'classification/mait_t_random_mask_*': dict(masking='sch1', random_mask_seed=0),
    # Windows grow in proportion from 7 pixels at 224.
    'classification/dat_b_384_*': dict(img_size=384, window_size=12),
    # Kernels are resized as in GFNet, which the paper cites for this size.
    'classification/lisanet_i_384_*': dict(
        img_size=384, kernel_resize='gfnet', kernel_domain='frequency'
    ),
    'classification/vit_*_448_*': dict(img_size=448),
    'classification/vit_*_672_*': dict(img_size=672),
    'classification/vit_*_896_*': dict(img_size=896),
    'retinanet/dat*': dict(out_indices=(1, 2, 3)),
    'detr/*': dict(out_indices=(3,)),
    'deformable_detr/*': dict(out_indices=(1, 2, 3)),
    # About 196 landmarks reproduce the FLOPs of Table 7 of iViT, 49 do not.
    'upernet/ivit_*': dict(landmarks=14),
    # In Deformable DETR, norms and the first two stages do not train; DC5 is dilated.
    'deformable_detr/r50_*': dict(
        type='ResNet',
        depth=50,
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=False),
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    'deformable_detr/r50_single_scale_*': dict(out_indices=(3,)),
    'deformable_detr/r50_single_scale_dc5_*': dict(
        type='mmseg.ResNet',
        strides=(1, 2, 2, 1),
        dilations=(1, 1, 1, 2),
        contract_dilation=True,
    ),
}


NAME = re.compile(r'(masked_cait|[a-z]+(?:v2)?)_([a-z]*\d*(?:_li)?)')


def named(leaf: str) -> dict:
    """Return the type and size that a config's name stands for."""
    family, size = NAME.match(leaf).groups()
    if family == 'vit':
        size = SIZES[size[0]]
    elif family in ('mait', 'deit'):
        size = MAIT_SIZES[size]
    elif family == 'hylisanet':
        size = f'hybrid-{SIZES[size]}'
    else:
        size = SIZES.get(size, size.replace('_', '-'))
    return dict(type=f'mmattn.{TYPES[family]}', arch=size)


def backbone(name: str) -> dict:
    """Return the settings of a config's backbone."""
    leaf = name.split('/')[1]
    settings = {} if leaf.startswith('r50') else named(leaf)
    if RECIPES[name]['drop_path'] is not None:
        settings['drop_path_rate'] = RECIPES[name]['drop_path']
    for pattern, row in SETTINGS.items():
        if fnmatch(name, pattern):
            settings |= row
    return settings
