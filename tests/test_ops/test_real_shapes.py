"""The calls that tests and reports share, and the unit that errors are given in."""

import pytest
import torch
from operator_checks import check_call

from tools.benchmark.real_shapes import OPERATORS, real_calls, small_calls
from tools.benchmark.tolerances import TOLERANCES, assert_close, error_in_tolerances


@pytest.mark.parametrize('operator', OPERATORS)
def test_small_calls_are_right_and_each_name_is_unique(operator):
    calls = small_calls(operator)
    assert calls
    for call in calls:
        check_call(call, None, torch.float32, 'cpu')
    names = [str(call) for call in (*real_calls(operator), *calls)]
    assert len(set(names)) == len(names)


def test_error_in_tolerances():
    expected, (rms, maximum, absolute) = torch.ones(1000), TOLERANCES[torch.float32]
    one, all_ = expected.double(), expected.double() + 2 * (rms + absolute)
    one[7] += 3 * (maximum + absolute)
    for wrong, error, kind in ((one, 3, 'error'), (all_, 2, 'RMS error')):
        found = error_in_tolerances(expected, wrong, torch.float32)
        assert found == pytest.approx(error, rel=1e-3)
        with pytest.raises(AssertionError, match=f'out: {kind}'):
            assert_close('out', expected, wrong, torch.float32)
    no_number = torch.tensor([1.0, float('nan')])
    assert error_in_tolerances(torch.ones(2), no_number) == float('inf')
    assert error_in_tolerances(torch.empty(0), torch.empty(0)) == 0
