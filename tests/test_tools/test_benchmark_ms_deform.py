"""tools/benchmark/operators/ms_deform_attn.py: its floors on a GPU."""

import pytest
import torch

for name in ('rich', 'mmengine'):
    pytest.importorskip(name)

from tools.benchmark import op  # noqa: E402
from tools.benchmark.operators import ms_deform_attn as encoder  # noqa: E402


def test_interpolations_have_the_rate_without_tensor_cores():
    """Ten FLOPs for each channel of each point; values and output, and three numbers
    for each point, are moved once."""
    case = encoder.cases((8, 6), 1, 'cpu', torch.float32)[0]
    pixels = 8 * 6 + 4 * 3 + 2 * 2 + 1 * 1
    points = pixels * 8 * 4 * 4
    rates = dict(bytes=1.0, flops=float('inf'), vector_flops=1.0)
    assert op.least_seconds(case, 'forward', rates) == {
        'bytes': 4 * (2 * pixels * 256 + 3 * points),
        'flops': 10 * 32 * points,
    }
    backward = op.least_seconds(case, 'forward+backward', rates)['flops']
    assert backward == 3 * 10 * 32 * points
