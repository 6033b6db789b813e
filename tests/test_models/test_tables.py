"""Keep each figure of ours where it is, at its distance from the paper's figure.

The two need not be equal; `docs/model_zoo.md` counts the figures that are equal as
printed. A change of a model that moves a figure, even nearer to the paper's, has to be
written down as `ours` in `tools/papers`.
"""

from decimal import Decimal
from pathlib import Path

import pytest

from tools.papers.counts import UNITS, count_row, row_model
from tools.papers.tables import (
    equals_as_printed,
    omitted_rows,
    paper_rows,
    papers,
    printed_figures,
    printed_results,
    recipes,
)

ROOT = Path(__file__).parents[2]
ROWS = paper_rows()
OMITTED = omitted_rows()
PAPERS = [paper for paper in papers() if 'tables' in paper]
FOLDERS = {folder for paper in PAPERS for folder in paper['configs']}
DEVIATION_ROUNDING = 0.051  # `deviation` is in per cent, with one decimal


def group_of(row):
    """Return the citation and the method of a row."""
    return row['source'].partition(',')[0] + ' ' + row['config'].split('/')[1]


GROUPS = dict.fromkeys(map(group_of, ROWS))


def figures(row):
    return {key: row[key] for key in UNITS if key in row}


def decimals(figure):
    return len(str(figure).partition('.')[2])


def assert_counts(row):
    counted = count_row(row, ROOT)
    for key, figure in figures(row).items():
        ours, where = counted[key] / UNITS[key], (row['name'], key)
        assert round(figure['ours'] * UNITS[key]) == counted[key], where
        allowed = abs(figure['deviation']) + DEVIATION_ROUNDING
        assert abs(100 * (ours / figure['paper'] - 1)) <= allowed, where


@pytest.mark.parametrize(
    'group', [group for group in GROUPS if group.endswith('classification')]
)
def test_counts_are_no_further_from_the_papers_than_today(group):
    """Count the smallest network; of those at 224 pixels the parameters, too.

    `test_configs.py` counts a dense network of each folder.
    """
    first, *rows = (row for row in ROWS if group_of(row) == group)
    assert_counts(first)
    for row in rows:
        if row['shape'] == [224, 224] and 'params' in row and 'part' not in row:
            assert_counts({k: v for k, v in row.items() if k != 'flops'})


@pytest.mark.slow
@pytest.mark.parametrize('group', GROUPS)
def test_all_counts(group):
    for row in ROWS:
        if group_of(row) == group:
            assert_counts(row)


@pytest.mark.parametrize('paper', PAPERS, ids=lambda paper: paper['cited_as'])
def test_every_printed_figure_has_a_row_or_a_reason(paper):
    """The sum of a column shows a wrong digit."""
    printed = printed_figures(paper)
    counted = {
        name: row for name, row in paper['rows'].items() if 'reading_of' not in row
    }
    reasons = [name for group in paper.get('omitted', []) for name in group['rows']]
    assert sorted([*counted, *reasons]) == sorted(printed)
    for name, row in counted.items():
        assert [*row['ours']] == [kind for kind in UNITS if kind in printed[name]]
    unread = {name for name, figures in printed.items() if '?' in figures.values()}
    assert unread <= set(reasons)
    for name in unread:
        assert set(printed[name].values()) - {printed[name]['source']} == {'?'}
    for kind, total in paper['totals'].items():
        texts = [figures.get(kind, '?') for figures in printed.values()]
        assert sum(Decimal(text) for text in texts if text != '?') == Decimal(total)


def test_other_readings_of_a_network_have_its_figures():
    by_name = {row['name']: row for row in ROWS}
    for row in ROWS:
        if 'reading_of' in row:
            base = by_name[row['reading_of']]
            assert 'reading_of' not in base and row['source'] == base['source']
            assert figures(row).keys() == figures(base).keys()
            for kind, figure in figures(row).items():
                assert figure['paper'] == base[kind]['paper']


def test_names_are_unique_and_reasons_given():
    rows = ROWS + OMITTED
    assert len({row['name'] for row in rows}) == len(rows)
    assert len({paper['position'] for paper in papers()}) == len(papers())
    assert all(len(row['omitted'].split()) > 5 for row in OMITTED)
    for row in ROWS:
        for figure in figures(row).values():
            near = equals_as_printed(figure) or abs(figure['deviation']) < 1
            assert near or row['note'], row['name']


@pytest.mark.parametrize('paper', PAPERS, ids=lambda paper: paper['cited_as'])
def test_results_agree_with_those_of_the_configs(paper):
    """Two columns were copied twice, and the mean of three is printed."""
    results, configs = printed_results(paper), recipes()
    assert all(name in configs for name in results if name.split('/')[0] in FOLDERS)
    for collection in sum(paper['configs'].values(), []):
        for name, facts in collection['models'].items():
            (tables,) = [t for n, t in results.items() if n.endswith(f'/{name}')] or [
                {}
            ]
            source = facts.get('source', collection.get('source'))
            for figure, text in tables.get(source, {}).items():
                assert facts.get(figure, float(text)) == float(text), name
    for tables in results.values():
        for figures in tables.values():
            if 'mean' in figures:
                parts = ('Top 1 Accuracy', 'ImageNet-V2', 'ReaL')
                mean = sum(float(figures[part]) for part in parts) / 3
                assert float(figures['mean']) == pytest.approx(mean, abs=0.11)


def test_a_figure_is_rounded_as_the_paper_rounds_it():
    """A zero at the end counts, as in 5.80."""
    printed = {
        name: texts
        for paper in PAPERS
        for name, texts in printed_figures(paper).items()
    }
    for row in ROWS:
        name = row.get('reading_of', row['name'])
        for kind, figure in figures(row).items():
            text = printed[name][kind]
            equal = f'{figure["ours"]:.{decimals(text)}f}' == text
            assert equals_as_printed(figure) == equal, (name, kind)


@pytest.mark.parametrize(
    'name, official', [('r50_single_scale', 34_066_593), ('r50_two_stage', 41_181_529)]
)
def test_deformable_detr_has_the_parameters_of_the_official_code(name, official):
    """It has 91 classes, and buffers for the scales and shifts of its frozen norms."""
    config = ROOT / f'configs/deformable_detr/{name}_50e_coco.py'
    detector = row_model(config, '{"model.bbox_head.num_classes": 91}')
    norms = 53_120
    assert sum(p.numel() for p in detector.parameters()) == official + norms
