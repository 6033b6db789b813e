"""The gate: models have the parameters and FLOPs that their papers print."""

from pathlib import Path

import pytest

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from mmengine.config import Config

from mmattn.analysis import count, paper_rows

ROOT = Path(__file__).parents[2]
ROWS = paper_rows()
UNITS = {'params': 1e6, 'flops': 1e9}
OURS_ROUNDING = 0.6  # of the last decimal of `ours`, which has three or more
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
PRINTED = {
    'arXiv:2402.17507v1': PRINTED_BY_IVIT_PAPER,
    'arXiv:2211.16289': PRINTED_BY_LISA_PAPER,
    'arXiv:2207.03006': PRINTED_BY_MAIT_PAPER,
}


def figures(row):
    return {key: row[key] for key in UNITS if key in row}


def decimals(figure):
    return len(str(figure).partition('.')[2])


def deviation(ours, paper):
    return 100 * (ours / paper - 1)


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['name'])
def test_counts_are_the_papers(row):
    cfg = Config.fromfile(ROOT / row['config'])
    cfg.merge_from_dict(row.get('options', {}))
    complexity = count(cfg, tuple(row['shape'])).part(row.get('part', ''))
    counts = {
        'params': complexity.params,
        'flops': complexity.flops_in(row.get('convention', 'with transforms')),
    }
    for key, figure in figures(row).items():
        ours = counts[key] / UNITS[key]
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
