"""tools/benchmark/operators/masked_attention.py: its peers, sizes and floors."""

import csv

import pytest
import torch

from mmattn.models import HMaiT
from mmattn.ops import masked_attention
from tools.benchmark.inputs import make_masked_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

for name in ('rich', 'mmengine'):
    pytest.importorskip(name)

from tools.benchmark import op  # noqa: E402
from tools.benchmark.operators import masked_attention as masked  # noqa: E402


@pytest.mark.parametrize('grid', [(7, 5), (1, 6), (2, 2), (9, 9)], ids=str)
@pytest.mark.parametrize('scale', [1, 30])
def test_unfold_is_the_definition(grid, scale):
    q, k, v, *_ = make_masked_inputs(
        grid=grid, num_special=0, M=2, D=4, dtype=torch.float64
    )
    inputs = [scale * q, k, v]

    def definition(q, k, v):
        return masked_attention(q, k, v, grid, backend='reference')

    def unfold(q, k, v):
        return masked.unfold_attention(q, k, v, grid)

    expected, actual = (run_with_grads(f, inputs) for f in (definition, unfold))
    assert_close('out', expected[0], actual[0])
    for name, want, got in zip('qkv', expected[1], actual[1], strict=True):
        assert_close(f'd{name}', want, got)


def methods(side, device='cpu'):
    cases = masked.cases(side, 1, device, torch.float32)
    return {case.method.replace(' (cpu)', '') for case in cases}


def test_quadratic_methods_end_where_a_call_takes_minutes(monkeypatch):
    ours, definition = 'masked_attention', 'masked_attention (definition)'
    linear = {ours, 'unfold'}
    full = linear | {definition, masked.BASELINE, 'flex_attention'}
    monkeypatch.setattr(masked, 'CPU_TOKENS', {'full': 36, 'soft': 20})
    soft = {f'{name}, soft' for name in (ours, definition, 'flex_attention')}
    assert methods((4, 5)) == full | soft
    assert methods(5) == methods(6) == full
    assert methods((6, 7)) == linear


def test_first_stage_is_that_of_the_network():
    arch = HMaiT.arch_zoo['tiny']
    assert arch['embed_dims'][0] == masked.HEADS * masked.WIDTH
    assert arch['num_heads'][0] == arch['masked_heads'][0] == masked.HEADS


def test_a_map_with_two_sides(tmp_path):
    path = tmp_path / 'op.csv'
    options = ['--quick', '--sides', '5x3', '4', '--csv', str(path)]
    assert op.main(['masked_attention', *options]) == 0
    with path.open(newline='') as file:
        assert {row['tokens'] for row in csv.DictReader(file)} == {'15', '16'}


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['lisa_block', '--sides', '5x3'], 'runs on square maps, got'),
        (['masked_attention', '--sides', '5x3x2'], "invalid parse_side value: '5x3x2'"),
        (['masked_attention', '--sides', '0x3'], "invalid parse_side value: '0x3'"),
        (['masked_attention', '--sides', 'a'], "invalid parse_side value: 'a'"),
    ],
    ids=['square-only', 'three', 'zero', 'word'],
)
def test_bad_sides_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        op.main([*arguments, '--quick'])
    assert message in capsys.readouterr().err


def test_floors():
    """Hard: 4 N C values and 9 keys a query. Full: N^2 exponentials, twice with a
    backward, which it computes again."""
    by_method = {
        case.method.partition(' (cpu)')[0]: case
        for case in masked.cases(8, 2, 'cpu', torch.bfloat16)
        if ', soft' not in case.method
    }
    rates = dict(bytes=1.0, flops=1.0, vector_flops=1.0, exponentials=1.0)
    values, pairs = 2 * 64 * 96, 2 * 3 * 64**2
    hard = by_method['masked_attention']
    assert op.least_seconds(hard, 'forward', rates) == {
        'bytes': 4 * 2 * values,
        'flops': 4 * 9 * values,
    }
    assert hard.least_bytes('forward+backward') == 11 * 2 * values
    full = by_method[masked.BASELINE]
    for which, times in (('forward', 1), ('forward+backward', 2)):
        floors = op.least_seconds(full, which, rates)
        assert floors['exponentials'] == times * pairs
    assert op.least_seconds(full, 'forward', rates)['flops'] == 4 * 32 * pairs


def test_soft_mask_has_the_exponentials_of_all_pairs():
    cases = masked.cases(8, 1, 'cpu', torch.float32)
    soft = [case for case in cases if ', soft' in case.method]
    assert len(soft) == 3
    for case in soft:
        assert case.exponentials['forward'] == 3 * 64**2
        assert len(case.tensors) == 4
