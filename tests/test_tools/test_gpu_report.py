"""The stored counts of kernels."""

from importlib.metadata import version

import pytest
import torch

pytest.importorskip('triton')

from tools.benchmark.measure import read_csv
from tools.benchmark.real_shapes import real_calls
from tools.gpu import report

COUNTED = [  # operator, words of the shape and capability
    ('deformable_attention', 'grid (7, 7)', 90),
    ('landmark_attention', 'B 1, N 67, L 300, M 10, D 32, E None', 80),
    ('masked_attention', 'num_special 1, B 32, M 3, D 64, mask zero', 80),
    ('ms_deform_attn', 'M 12, D 64, P 4, form locations, deterministic', 90),
    ('neighborhood_attention', 'grid (14, 14)', 90),
    ('structure_aware_attention', 'grid (7, 7)', 80),
]


@pytest.mark.skipif(
    not version('triton').startswith(f'{report.TRITON}.'),
    reason='the stored counts are of one version',
)
@pytest.mark.parametrize(
    'operator, shape, capability',
    [
        pytest.param(*row, marks=pytest.mark.slow if row[0] != 'ms_deform_attn' else ())
        for row in COUNTED
    ],
    ids=str,
)
def test_stored_counts_are_of_the_present_kernels(operator, shape, capability):
    """After a change of a kernel, `python -m tools.gpu.report --write` counts anew."""
    call = next(c for c in real_calls(operator) if shape in str(c))
    rows = read_csv(report.path_of(capability))
    stored = [row for row in rows if row['shape'] == str(call)]
    assert report.rows_of(call, capability) == stored


def test_only_operators_that_start_a_kernel_are_counted():
    x = torch.ones(3, 4, device='meta')
    with report.EagerLaunches() as eager:
        torch.promote_types(x.dtype, torch.float64)
        x.T.reshape(3, 4).add(torch.ones(1, 4, device='meta').expand(3, 4))
    assert eager.counts == dict(clone=1, add=1, ones=1)
    assert eager.bytes == 4 * (2 * 12 + 12 + 4 + 12 + 4)
