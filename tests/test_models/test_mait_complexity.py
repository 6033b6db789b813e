"""MaiT's, H-MaiT's and masked CaiT's parameters to the unit, and their two FLOP counts.

What "MaiT: Leverage Attention Masks for More Efficient Image Transformers",
https://arxiv.org/abs/2207.03006, prints of them is in `test_tables.py`.
"""

import functools
from pathlib import Path

import pytest

pytest.importorskip('mmpretrain')

import timm
from mmengine.config import Config

from mmattn.analysis import count

CONFIGS = Path(__file__).parents[2] / 'configs/classification'
PLAIN = dict(masking='none', layer_scale=None)
STARRED = dict(masking='none', layer_scale=1e-5)
DEPTH_12 = dict(PLAIN, depth=12)
slow = pytest.mark.slow  # a larger one of what has been counted
CLASSIFIERS = [  # config, backbone options, parameters, dense GFLOPs
    ('mait_xt', PLAIN, 6_301_432, 1.467),
    ('mait_xt', STARRED, 6_308_344, 1.467),
    pytest.param('mait_xt', DEPTH_12, 3_292_984, 0.744, marks=slow),
    ('mait_xt_distilled', PLAIN, 6_446_720, 1.475),
    ('mait_t', PLAIN, 11_055_784, 2.478),
    pytest.param('mait_t', STARRED, 11_065_000, 2.478, marks=slow),
    ('mait_t', DEPTH_12, 5_717_416, 1.254),
    ('mait_xs', PLAIN, 24_545_800, 5.286),
    pytest.param('mait_xs', STARRED, 24_559_624, 5.286, marks=slow),
    pytest.param('mait_xs', DEPTH_12, 12_556_936, 2.665, marks=slow),
    ('mait_s', PLAIN, 43_344_232, 9.140),
    pytest.param('mait_s', STARRED, 43_362_664, 9.140, marks=slow),
    pytest.param('mait_s', DEPTH_12, 22_050_664, 4.599, marks=slow),
    ('masked_cait_xxs24', {}, 11_956_264, 2.5235),
    pytest.param('masked_cait_s24', {}, 46_916_200, 9.327, marks=slow),
]
SCHEMES = [  # arch, masking, GFLOPs of heads that count the ones of their masks
    ('xt', 'sch1', 1.382),
    ('xt', 'sch2', 1.368),
    pytest.param('t', 'sch1', 2.365, marks=slow),
    pytest.param('t', 'sch2', 2.346, marks=slow),
    pytest.param('xs', 'sch1', 5.116, marks=slow),
    pytest.param('xs', 'sch2', 5.088, marks=slow),
    pytest.param('s', 'sch1', 9.026, marks=slow),
    ('s', 'sch2', 8.895),
]
HEADS = {'xt': 3, 't': 3, 'xs': 3, 's': 6}
WIDTHS = {'xt': 48, 't': 64, 'xs': 96, 's': 64}  # of a head
# Pairs in the mask of 14 x 14 patches and a class token; 3 x 3 at each, and its ones.
PAIRS, ONES = 196 * (9 + 1) + 197, 1993
POSITIONS = {  # parameters of H-MaiT-T and -S
    'relative': (28_288_354, 49_606_258),
    'none': (28_265_032, 49_558_600),
    'absolute': (28_566_088, 49_859_656),
    'full': (28_435_858, 49_834_402),
}
HMAIT = {'t': (4.495, 8.783), 's': (8.898, 13.299)}  # GFLOPs mask-credited, dense
SWIN = {'t': ('tiny', 4.491), 's': ('small', 8.741)}


@functools.cache
def complexity(name: str, **options):
    epochs = 300 if name.startswith('hmait') else 400
    cfg = Config.fromfile(CONFIGS / f'{name}_{epochs}e_in1k.py')
    cfg.model.backbone.update(options)
    return count(cfg, (224, 224))


def giga(flops: int) -> float:
    return round(flops / 1e9, 3)


@pytest.mark.parametrize('name, options, params, flops', CLASSIFIERS)
def test_classifiers(name, options, params, flops):
    counted = complexity(name, **options)
    assert counted.params == params
    assert counted.flops_in('dense') / 1e9 == pytest.approx(flops, abs=0.0006)
    if options:  # without masks
        assert counted.flops_in('mask-credited') == counted.flops_in('dense')


@pytest.mark.parametrize('arch, masking, flops', SCHEMES)
def test_schemes(arch, masking, flops):
    """Windows count whole, at the border too: that much more than the masks' ones."""
    counted = complexity(f'mait_{arch}', masking=masking, layer_scale=None)
    heads = 24 if masking == 'sch1' else 8 * (HEADS[arch] - 1) + 12
    per_pair = 2 * WIDTHS[arch] * heads
    assert counted.outside_masks == per_pair * (197**2 - PAIRS)
    ones = counted.flops - per_pair * (PAIRS - ONES)
    assert ones / 1e9 == pytest.approx(flops, abs=0.0006)
    assert counted.flops_in('dense') - ones == per_pair * (197**2 - ONES)


@pytest.mark.parametrize('arch', ['xt', 's'])
def test_soft_masks_have_parameters_but_save_nothing(arch):
    hard, soft = (
        complexity(f'mait_{arch}', masking=masking, layer_scale=None)
        for masking in ('none', 'soft')
    )
    assert soft.params - hard.params == 21 * HEADS[arch]
    assert soft.outside_masks == 0 and soft.flops == hard.flops


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('arch', ['t', pytest.param('s', marks=slow)])
def test_hmait(arch, position):
    """Positions have parameters, but no FLOPs."""
    counted = complexity(f'hmait_{arch}', position=position)
    assert counted.params == dict(zip('ts', POSITIONS[position], strict=True))[arch]
    credited, dense = (counted.flops_in(c) for c in ('mask-credited', 'dense'))
    assert (giga(credited), giga(dense)) == HMAIT[arch]


@pytest.mark.parametrize('arch', SWIN)
def test_hmait_has_the_parameters_of_swin(arch):
    name, flops = SWIN[arch]
    swin = count(timm.create_model(f'swin_{name}_patch4_window7_224'), (224, 224))
    assert swin.params == POSITIONS['relative']['ts'.index(arch)]
    assert giga(swin.flops) == flops


@pytest.mark.parametrize(
    'stage, dense, credited, attention, cut',
    [(0, 2.235, 0.352, 84.5, 84.2), (1, 0.583, 0.350, 40.5, 40.0)],
    ids=['stage-1', 'stage-2'],
)
def test_blocks_of_hmait(stage, dense, credited, attention, cut):
    """Sections 4.1 and 5.4: the share of the attention maps, what the masks cut."""
    block = complexity('hmait_t', position='relative').part(
        f'backbone.layers.{stage}.blocks.0'
    )
    whole = block.flops_in('dense')
    assert giga(whole) == dense and giga(block.flops) == credited
    N, C = (56 >> stage) ** 2, 96 << stage
    maps = 2 * N**2 * C
    assert round(100 * maps / whole, 1) == attention
    assert round(100 * block.outside_masks / whole, 1) == cut
    left = (maps - block.outside_masks) / maps
    assert left == pytest.approx(9 / N)  # 0.3 % and 1.1 %
