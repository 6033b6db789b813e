"""Keep each figure of ours where it is.

It need not equal the paper's; `docs/model_zoo.md` counts the figures that are equal as
printed. A change of a model that moves a figure, even nearer to the paper's, has to be
written down as `ours` in `tools/papers`.
"""

from pathlib import Path

import pytest

from tools.papers.counts import count_row, row_model
from tools.papers.tables import UNITS, paper_rows

ROOT = Path(__file__).parents[2]
ROWS = paper_rows()


def group_of(row):
    """Return the citation and the method of a row."""
    return row['source'].partition(',')[0] + ' ' + row['config'].split('/')[1]


GROUPS = dict.fromkeys(map(group_of, ROWS))


@pytest.mark.slow
@pytest.mark.parametrize('group', GROUPS)
def test_all_counts(group):
    for row in ROWS:
        if group_of(row) == group:
            counted = count_row(row, ROOT)
            for key in row.keys() & UNITS.keys():
                ours = round(row[key]['ours'] * UNITS[key])
                assert ours == counted[key], (row['name'], key)


@pytest.mark.parametrize(
    'name, official', [('r50_single_scale', 34_066_593), ('r50_two_stage', 41_181_529)]
)
def test_deformable_detr_has_the_parameters_of_the_official_code(name, official):
    """It has 91 classes, and buffers for the scales and shifts of its frozen norms."""
    config = ROOT / f'configs/deformable_detr/{name}_50e_coco.py'
    detector = row_model(config, '{"model.bbox_head.num_classes": 91}')
    norms = 53_120
    assert sum(p.numel() for p in detector.parameters()) == official + norms
