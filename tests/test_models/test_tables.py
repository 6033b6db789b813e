"""The gate: models have the parameters and FLOPs that their papers print."""

import functools
import json
from pathlib import Path

import pytest

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from mmengine.config import Config
from torch import nn

from mmattn.analysis import count, paper_rows
from mmattn.analysis.flops import build

ROOT = Path(__file__).parents[2]
ROWS = paper_rows()
UNITS = {'params': 1e6, 'flops': 1e9}
# Of the last decimal of `ours`, which has three or more; six are to the unit.
OURS_ROUNDING = 0.6
DEVIATION_ROUNDING = 0.051  # of `deviation`, in per cent, which has one
SIZES = 't', 's', 'b'
VITS = 'vit_t16', 'vit_s16', 'vit_t8'
PRINTED_BY_IVIT_PAPER = {
    **{f'ivit_{size}': {'params', 'flops'} for size in SIZES},
    **{f'mask_rcnn_ivit_{size}': {'params', 'flops'} for size in SIZES},
    **{f'upernet_ivit_{size}': {'params', 'flops'} for size in SIZES},
    **{f'{v}_{a}': {'params', 'flops'} for v in VITS for a in ('mhsa', 'imhsa')},
    **{
        f'{vit}_{attention}_{side}': {'flops'}
        for vit in VITS[:2]
        for attention in ('mhsa', 'imhsa')
        for side in (448, 672, 896)
    },
}

PRINTED_BY_LISA_PAPER = {
    **{
        name: {'params', 'flops'}
        for name in (
            'lisanet_i',
            'lisanet_i_384',
            *(f'lisanet_i_self_attention{rpe}' for rpe in ('', '_rpe', '_rpes')),
            *(f'lisanet_i_sa_{eq}' for eq in ('eq9', 'eq9_rpes', 'eq10', 'eq11')),
            *(f'lisanet_i_patterns_{patterns}' for patterns in (1, 4, 8)),
            *(f'lisanet_i_local_{side}' for side in (3, 5, 7)),
            *(f'{hybrid}lisanet_{size}' for hybrid in ('', 'hy') for size in 'sb'),
            *(f'mask_rcnn_{hybrid}lisanet_s' for hybrid in ('', 'hy')),
            *(f'sem_fpn_{hybrid}lisanet_s' for hybrid in ('', 'hy')),
        )
    },
    **{
        f'block_{mixer}_{side}': {'flops'}
        for mixer in ('self_attention', 'lisa')
        for side in (7, 14, 28, 56, 84)
    },
}
PRINTED_BY_MAIT_PAPER = {
    **{
        name: {'params', 'flops'}
        for name in (
            *(f'mait_{size}' for size in ('xt', 'xt_distilled', 't', 'xs', 's')),
            *(f'mait_{size}_without_layer_scale' for size in ('xt', 'xs', 's')),
            *(f'masked_cait_{size}' for size in ('xxs24', 's24')),
            *(f'hmait_{size}' for size in 'ts'),
            *(
                f'hmait_{size}_position_{position}'
                for size in 'ts'
                for position in ('none', 'absolute', 'full')
            ),
        )
    },
    **{f'hmait_t_block{dense}': {'flops'} for dense in ('', '_dense')},
}
PVTS = tuple(f'pvt_{size}' for size in 'tsml')
PVT_V2S = tuple(
    f'pvtv2_{size}' for size in ('b0', 'b1', 'b2_li', 'b2', 'b3', 'b4', 'b5')
)
PVT_RETINANETS = {
    f'retinanet_{name}': {'params', 'flops'}
    for name in ('pvt_s', 'pvtv2_b2_li', 'pvtv2_b2')
}  # FLOPs of all three are the second paper's


def printed_by_pvt_paper(models):
    retinanets = {f'retinanet_{name}': {'params'} for name in models}
    return {
        **{name: {'params', 'flops'} for name in models},
        **{
            name: what
            for name, what in retinanets.items()
            if name not in PVT_RETINANETS
        },
        **{f'mask_rcnn_{name}': {'params'} for name in models},
        **{f'sem_fpn_{name}': {'params', 'flops'} for name in models},
    }


PRINTED_BY_DAT_PAPER = {
    **{name: {'params', 'flops'} for name in ('dat_t', 'dat_s', 'dat_b', 'dat_b_384')},
    **{
        f'{method}_dat_{size}': {'params', 'flops'}
        for method in ('sem_fpn', 'upernet')
        for size in SIZES
    },
    'mask_rcnn_dat_t': {'params', 'flops'},
    'cascade_mask_rcnn_dat_t': {'params'},
    'cascade_mask_rcnn_dat_s': {'params', 'flops'},
}
PRINTED_BY_DAT_PLUS_PLUS_PAPER = {
    **{f'datpp_{size}': {'params', 'flops'} for size in SIZES},
    'datpp_b_384': {'flops'},
}
PRINTED_BY_DEFORMABLE_DETR = {
    f'deformable_detr_r50{variant}': {'params', 'flops'}
    for variant in (
        *('', '_refine', '_two_stage'),
        *('_single_scale', '_single_scale_dc5'),
    )
}
PRINTED = {
    'arXiv:2402.17507v1': PRINTED_BY_IVIT_PAPER,
    'arXiv:2211.16289': PRINTED_BY_LISA_PAPER,
    'arXiv:2207.03006': PRINTED_BY_MAIT_PAPER,
    'arXiv:2102.12122': printed_by_pvt_paper(PVTS),
    'arXiv:2106.13797': printed_by_pvt_paper(PVT_V2S) | PVT_RETINANETS,
    'arXiv:2201.00520': PRINTED_BY_DAT_PAPER,
    'arXiv:2309.01430': PRINTED_BY_DAT_PLUS_PLUS_PAPER,
    'arXiv:2010.04159': PRINTED_BY_DEFORMABLE_DETR,
}
# Parameters of the official code, frozen ones included. It has 91 classes, and counts
# what its frozen norms scale and shift by as buffers.
OFFICIAL_DEFORMABLE_DETR = {
    'r50_single_scale': 34_066_593,
    'r50_single_scale_dc5': 34_066_593,
    'r50': 40_069_665,
    'r50_refine': 40_849_660,
    'r50_two_stage': 41_181_529,
}


def figures(row):
    return {key: row[key] for key in UNITS if key in row}


def decimals(figure):
    return len(str(figure).partition('.')[2])


def deviation(ours, paper):
    return 100 * (ours / paper - 1)


@functools.cache
def model(config, options):
    cfg = Config.fromfile(ROOT / config)
    cfg.merge_from_dict(json.loads(options))
    return build(cfg)


@functools.cache
def complexity(config, options, shape):
    return count(model(config, options), shape)


def counts(row):
    """FLOPs only where the paper has them: parameters take no pass."""
    given = row['config'], json.dumps(row.get('options', {}))
    if 'flops' not in row:
        return {'params': sum(p.numel() for p in model(*given).parameters())}
    part = complexity(*given, tuple(row['shape'])).part(row.get('part', ''))
    convention = row.get('convention', 'with transforms')
    return {'params': part.params, 'flops': part.flops_in(convention)}


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['name'])
def test_counts_are_the_papers(row):
    counted = counts(row)
    for key, figure in figures(row).items():
        ours = counted[key] / UNITS[key]
        rounding = OURS_ROUNDING * 10 ** -max(3, decimals(figure['ours']))
        assert ours == pytest.approx(figure['ours'], abs=rounding), key
        allowed = abs(figure['deviation']) + DEVIATION_ROUNDING
        assert abs(deviation(ours, figure['paper'])) <= allowed, key


@pytest.mark.parametrize('paper', PRINTED)
def test_every_figure_of_the_paper_has_a_row(paper):
    rows = [row for row in ROWS if row['source'].partition(',')[0] == paper]
    assert {row['name']: set(figures(row)) for row in rows} == PRINTED[paper]


def test_names_are_unique():
    assert len({row['name'] for row in ROWS}) == len(ROWS)
    assert len(ROWS) == sum(map(len, PRINTED.values()))


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['name'])
def test_allowed_deviation_has_no_slack(row):
    assert row['source']
    for figure in figures(row).values():
        exact = deviation(figure['ours'], figure['paper'])
        assert figure['deviation'] == pytest.approx(exact, abs=DEVIATION_ROUNDING)


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['name'])
def test_large_deviations_are_explained(row):
    for figure in figures(row).values():
        agrees = round(figure['ours'], decimals(figure['paper'])) == figure['paper']
        assert agrees or abs(figure['deviation']) < 1 or row['note']


@pytest.mark.parametrize(
    'prefixes, key, claim',
    [
        (('upernet_ivit',), 'params', '{} to {} % fewer parameters than printed'),
        (('mask_rcnn_ivit',), 'params', '{} to {} % fewer parameters and'),
        (('mask_rcnn_ivit',), 'flops', '{} to {} % fewer FLOPs,'),
        (
            (
                'mask_rcnn_dat_',
                'cascade_mask_rcnn_dat_',
                'sem_fpn_dat_',
                'upernet_dat_',
            ),
            'flops',
            '{} to {} % more FLOPs.',
        ),
    ],
    ids=['upernet-params', 'mask-rcnn-params', 'mask-rcnn-flops', 'dat-flops'],
)
def test_readme_says_where_tables_are_not_met(prefixes, key, claim):
    found = [
        row[key] for row in ROWS if row['name'].startswith(prefixes) and key in row
    ]
    exact = sorted(abs(deviation(figure['ours'], figure['paper'])) for figure in found)
    claim = claim.format(f'{exact[0]:.1f}', f'{exact[-1]:.1f}')
    assert claim in (ROOT / 'README.md').read_text()


@pytest.mark.parametrize('name', OFFICIAL_DEFORMABLE_DETR)
def test_deformable_detr_has_the_official_parameters(name):
    config = f'configs/deformable_detr/{name}_50e_coco.py'
    options = json.dumps({'model.bbox_head.num_classes': 91})
    detector = model(config, options)
    assert detector.neck.convs[0].conv.bias is not None
    norms = [m for m in detector.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    frozen = sum(p.numel() for norm in norms for p in norm.parameters())
    assert frozen == 53_120
    total = sum(p.numel() for p in detector.parameters())
    assert total - frozen == OFFICIAL_DEFORMABLE_DETR[name]
