"""The calls that tests and reports share, and the unit that errors are given in."""

from dataclasses import replace

import pytest
import torch
from operator_checks import check_call

from tools.benchmark import real_shapes
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


def test_real_calls_are_made_as_named():
    """The smallest one; the others take long on a CPU."""
    call = real_calls('neighborhood_attention')[0]
    q, *_ = call.make_tensors(dtype=torch.float16, device='cpu')
    assert q.shape[1:3] == (14, 14) and 'grid (14, 14), K 7' in str(call)


def test_a_backend_is_named_to_the_operator():
    for call in map(lambda name: small_calls(name)[0], OPERATORS):
        tensors = call.make_tensors()
        with pytest.raises(ValueError, match='got .nowhere.'):
            call.run_on('nowhere')(*tensors)


def test_the_reference_need_not_be_deterministic():
    """PyTorch refuses the backward of `grid_sample` on a GPU."""
    call = small_calls('ms_deform_attn')[1]
    seen = {}

    def function(value, points, weights, reference, backend=None):
        seen[backend] = torch.are_deterministic_algorithms_enabled()
        tensors = value, points, weights, reference
        return call.function(*tensors, backend='reference')

    check_call(replace(call, function=function), 'any', torch.float32, 'cpu')
    assert call.deterministic and seen == {'reference': False, 'any': True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_unknown_operator():
    with pytest.raises(ValueError, match="got 'convolution'"):
        real_shapes.real_calls('convolution')


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_error_in_tolerances(dtype):
    expected = torch.ones(1000, dtype=torch.float64)
    tolerance = TOLERANCES[dtype]
    wrong = expected.clone()
    wrong[7] += 3 * (tolerance.maximum + tolerance.absolute)
    error = error_in_tolerances(expected, wrong, dtype)
    assert error == pytest.approx(3)  # the RMS error is a thirtieth
    with pytest.raises(AssertionError, match='out: error'):
        assert_close('out', expected, wrong, dtype)
    wrong = expected + 2 * (tolerance.rms + tolerance.absolute)
    assert error_in_tolerances(expected, wrong, dtype) == pytest.approx(2)
    with pytest.raises(AssertionError, match='out: RMS error'):
        assert_close('out', expected, wrong, dtype)


def test_error_of_what_is_not_finite_and_of_nothing():
    x = torch.tensor([1.0, float('nan')])
    assert error_in_tolerances(torch.ones(2), x) == float('inf')
    assert error_in_tolerances(torch.empty(0), torch.empty(0)) == 0
