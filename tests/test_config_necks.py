"""Necks are the methods' and take the maps that the backbones give.

The settings are those of mmdetection 3 and mmsegmentation 1, which the code of
PVT and of Swin has unchanged, and of DAT-Detection and Deformable DETR.
"""

import functools
import json
from collections.abc import Iterator

import pytest
import torch

for name in ('mmengine', 'mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import RECIPES, load  # noqa: E402
from recipe_images import first  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.registry import MODELS  # noqa: E402

SIDE = 224
DECIDING = 'type', 'out_indices', 'out_type', 'distilled'
DEFAULTS = {'FPN': dict(start_level=0, add_extra_convs=False, norm_cfg=None)}
FPN = DEFAULTS['FPN'] | dict(type='FPN', out_channels=256, num_outs=5)
INPUT, OUTPUT = dict(add_extra_convs='on_input'), dict(add_extra_convs='on_output')
# The pyramid begins at the second map, unless the backbone leaves the first one out.
SECOND = dict(start_level=1)
MAPPER = dict(
    type='ChannelMapper',
    kernel_size=1,
    out_channels=256,
    bias=True,
    norm_cfg=dict(type='GN', num_groups=32),
    act_cfg=None,
    num_outs=4,
)
PLAIN_MAPPER = {k: v for k, v in MAPPER.items() if k != 'bias'}
PLAIN_MAPPER |= dict(norm_cfg=None, num_outs=1)
POOL = dict(type='GlobalAveragePooling')
MLP = dict(type='mmattn.PooledMLP')
# By pattern; the first that matches counts. The channels are the backbone's.
NECKS = {
    'mask_rcnn/datpp_*': FPN | INPUT,
    'mask_rcnn/*': FPN,
    'cascade_mask_rcnn/*': FPN,
    'retinanet/dat*': FPN | INPUT,
    'retinanet/*': FPN | INPUT | SECOND,
    'atss/*': FPN | OUTPUT | SECOND,
    'gfl/*': FPN | OUTPUT | SECOND,
    'sparse_rcnn/*': FPN | dict(num_outs=4),
    'sem_fpn/*': FPN | dict(num_outs=4),
    'detr/*': PLAIN_MAPPER,
    'deformable_detr/*_single_scale_*': MAPPER | dict(num_outs=1),
    'deformable_detr/*': MAPPER,
    'upernet/*': None,
    'mask2former/*': None,
    'classification/ivit_*': MLP,
    'classification/lisanet_i_*': POOL,
    'classification/*lisanet_*': MLP,
    'classification/mait_*': None,  # they end with a class token
    'classification/masked_cait_*': None,
    'classification/deit_*': None,
    'classification/cait_*': None,
    'classification/pvt_*': None,
    'classification/*': POOL,
}
# The stride of the first map that the heads see, by pattern.
STRIDES = {
    'retinanet/*': 8,
    'atss/*': 8,
    'gfl/*': 8,
    'detr/*': 32,
    'deformable_detr/*_dc5_*': 16,
    'deformable_detr/*_single_scale_*': 32,
    'deformable_detr/*': 8,
    'classification/*': None,
    '*': 4,
}


def shallow(backbone: dict) -> dict:
    """Return a backbone's settings that decide on its outputs, with shallow stages."""
    if 'arch' not in backbone:
        return backbone
    arch = MODELS.get(backbone['type']).arch_zoo[backbone['arch']]
    short = {'depth': 2} if 'depth' in arch else {'depths': (1,) * len(arch['depths'])}
    kept = {key: value for key, value in backbone.items() if key in DECIDING}
    return kept | dict(arch=arch | short)


@functools.cache
def shapes(scope: str, backbone: str) -> list[torch.Size]:
    """Return the shapes of a backbone's outputs; equal backbones are built once."""
    model = build(dict(model=json.loads(backbone), default_scope=scope))
    model.eval()
    with torch.no_grad():
        (*outs, last) = model(torch.zeros(1, 3, SIDE, SIDE, device='meta'))
    if isinstance(last, tuple):  # two class tokens
        last, _ = last
    return [out.shape for out in (*outs, last)]


def outputs(name: str) -> list[torch.Size]:
    cfg = load(name)
    backbone = shallow(cfg.model.backbone.to_dict())
    return shapes(cfg.default_scope, json.dumps(backbone))


def test_necks_are_the_methods():
    wrong = []
    for name in RECIPES:
        neck, source = load(name).model.get('neck'), first(NECKS, name)
        if neck:
            neck = DEFAULTS.get(neck['type'], {}) | neck.to_dict()
            neck.pop('in_channels', None)
        if neck != source:
            wrong.append(f'{name}: {neck}, not {source}')
    assert not wrong, '\n'.join(wrong)


def channels(name: str) -> Iterator[tuple[object, object]]:
    """Yield the channels that necks and heads expect, with those that they get."""
    model, given = load(name).model, [shape[1] for shape in outputs(name)]
    neck = model.get('neck') or {}
    if name.startswith('classification/'):
        (width,) = given[-1:]
        mlp = neck.get('type') == MLP['type']
        yield neck.get('in_channels', width), width
        yield model.head.in_channels, 4 * width if mlp else width
    else:
        yield list((neck or model.decode_head).in_channels), given
    if auxiliary := model.get('auxiliary_head'):
        yield auxiliary.in_channels, given[auxiliary.in_index]


def test_necks_and_heads_take_the_channels_that_backbones_give():
    wrong = [
        f'{name}: {taken}, not {given}'
        for name in RECIPES
        for taken, given in channels(name)
        if taken != given
    ]
    assert not wrong, '\n'.join(wrong)


def test_heads_see_maps_of_the_strides_that_they_assume():
    wrong = []
    for name in RECIPES:
        if stride := first(STRIDES, name):
            level = (load(name).model.get('neck') or {}).get('start_level', 0)
            given = SIDE / outputs(name)[level][-1]
            if given != stride:
                wrong.append(f'{name}: {given}, not {stride}')
    assert not wrong, '\n'.join(wrong)
