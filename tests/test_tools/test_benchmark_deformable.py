"""tools/benchmark/operators/deformable_attention.py: the sizes that it runs."""

import pytest
import torch

from tools.benchmark.tolerances import assert_close

for name in ('rich', 'mmengine'):
    pytest.importorskip(name)

from tools.benchmark.operators import deformable_attention as deformable  # noqa: E402


@pytest.mark.parametrize(
    'side, heads, keys, tables',
    [
        (7, 16, 49, [13]),
        (14, 8, 49, [27]),
        (28, 4, 49, [55]),
        (56, 2, 49, [111]),
        ((25, 42), 16, 1050, [49, 13]),
        ((50, 84), 8, 1050, [99, 27]),
    ],
)
def test_stages_of_the_network(side, heads, keys, tables):
    cases = deformable.cases(side, 1, 'cpu', torch.float32)
    *ours, plain = cases
    assert [case.tensors[4].shape[1] for case in ours[::3]] == tables
    for case in ours:
        assert case.tensors[1].shape == (1, keys, heads, 32)
    assert plain.tensors[0].shape[1:] == ours[0].tensors[0].shape[1:]


def test_plain_attention_is_that_with_a_table_of_zeros():
    ours, *_, plain = deformable.cases(7, 1, 'cpu', torch.float32)
    tensors = [*ours.tensors[:4], torch.zeros_like(ours.tensors[4])]
    assert_close('out', plain.call(*plain.tensors), ours.call(*tensors))
