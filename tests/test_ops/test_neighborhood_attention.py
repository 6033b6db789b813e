"""Neighborhood attention on the CPU: the definition, its oracles and the backends."""

from functools import partial
from itertools import product

import pytest
import torch
from compiled_extension import by_compiled
from operator_cases import names_of
from operator_checks import check_operator, check_repeatable, every_case, supported
from torch import Tensor
from triton_devices import every_triton

from mmattn.ops import neighborhood_attention
from mmattn.ops.common import pieces
from mmattn.ops.neighborhood_attention.reference import neighborhood_attention_reference
from tools.benchmark.inputs import make_neighborhood_inputs as make_inputs
from tools.benchmark.tolerances import run_with_grads

NAMES = names_of('neighborhood_attention')
SHAPES = {
    'map of the window': dict(grid=(7, 7), K=7),
    'low and long': dict(grid=(7, 20), K=7),
    'one more than the window': dict(grid=(8, 8), K=7),
    '13x9': dict(grid=(13, 9), K=7),
    '7x5, one head, batch 1': dict(grid=(7, 5), K=3, M=1, B=1),
    '63 pixels, odd width of a head': dict(grid=(9, 7), K=5, D=5),
    'one channel': dict(grid=(4, 6), K=3, D=1),
    'several tiles': dict(grid=(17, 23), K=3, B=1, M=2),
}


def by_loops(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> Tensor:
    """Attend one query at a time, as NATTEN defines its window and bias."""
    _, H, W, M, D = q.shape
    K = (rpb.shape[1] + 1) // 2

    def window(position, side):
        start = min(max(position - K // 2, 0), side - K)
        return range(start, start + K)

    out = torch.zeros_like(q)
    for y, x, head in product(range(H), range(W), range(M)):
        keys = list(product(window(y, H), window(x, W)))
        rows, columns = torch.tensor(keys).unbind(1)
        bias = rpb[head, rows - y + K - 1, columns - x + K - 1]
        k_w, v_w = (tensor[:, rows, columns, head] for tensor in (k, v))
        scores = (k_w * q[:, None, y, x, head]).sum(-1) * D**-0.5 + bias
        weights = scores.softmax(dim=1)
        out[:, y, x, head] = (weights[..., None] * v_w).sum(1)
    return out


triton = partial(neighborhood_attention, backend='triton')
tiles = partial(neighborhood_attention, backend='torch')
compiled = partial(neighborhood_attention, backend='cpp')


@pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES)
def test_reference_against_loops(shape):
    check_operator(
        by_loops,
        make_inputs(**shape, dtype=torch.float64),
        expected=neighborhood_attention_reference,
    )


@every_case(2, shape=SHAPES | {'31x44': dict(grid=(31, 44), K=7, B=1, M=1, D=3)})
def test_tiles(shape, dtype):
    check_operator(tiles, make_inputs(**shape, dtype=dtype))


@pytest.mark.parametrize('heads', [1, 2, 4])
def test_pieces(monkeypatch, heads):
    """One head, two of three, and an image and a third."""
    monkeypatch.setattr(pieces, 'ELEMENTS', heads * 9 * 8 * 81)
    check_operator(tiles, make_inputs(B=3))


@by_compiled
@every_case(2, shape=SHAPES | {'bands': dict(grid=(60, 7), K=3, M=1, D=32)})
def test_compiled_backend(backend, shape, dtype):
    check_operator(compiled, make_inputs(**shape, dtype=supported(backend, dtype)))


@by_compiled
@pytest.mark.parametrize('position', [1, 2])
def test_nan_stays_in_its_windows(backend, position):
    inputs = make_inputs(grid=(25, 27), K=5)
    inputs[position] = inputs[position].clone()
    inputs[position][0, 1, 12, 1] = float('nan')
    out = compiled(*inputs)
    broken = out[0, :, :, 1].isnan().any(-1)
    assert broken[:4, 10:15].all() and broken.sum() == 20
    assert out.isnan().sum() == 20 * out.shape[-1]


@pytest.mark.parametrize('position', [1, 2])
def test_nan_stays_in_its_tiles(position):
    inputs = make_inputs(grid=(25, 27), K=5)
    inputs[position] = inputs[position].clone()
    inputs[position][0, 1, 2, 1] = float('nan')
    out, grads = run_with_grads(tiles, inputs)
    for x in (out, *grads[:3]):
        assert x[1].isfinite().all() and x[:, :, :, [0, 2]].isfinite().all()
        assert x[:, 12:].isfinite().all() and x[:, :, 12:].isfinite().all()
    assert out[0, :4, :5, 1].isnan().any(-1).all()


KERNELS = {
    'map of the window': dict(grid=(5, 5), K=5, B=1, M=1, D=4),
    '7x5, batch 2': dict(grid=(7, 5), K=3, M=2, D=5),
    '14x22, K 7, keys a window from the border end a tile': dict(
        grid=(14, 22), K=7, B=1, M=1, D=16
    ),
    '13x19, K 13': dict(grid=(13, 19), K=13, B=1, M=1, D=4),
    '33x17, K 3': dict(grid=(33, 17), K=3, B=1, M=1, D=20),
    'bfloat16': dict(grid=(9, 12), K=7, B=1, M=2, D=4, dtype=torch.bfloat16),
    'float16': dict(grid=(12, 9), K=5, B=1, M=1, D=4, dtype=torch.float16),
}


@every_triton('shape', KERNELS)
def test_triton(shape, device):
    inputs = make_inputs(**shape, device=device)
    # The table lies between NaN, so that nothing outside it may be read.
    M, *sides = inputs[3].shape
    inputs[3] = torch.cat([inputs[3].new_full((1, *sides), torch.nan), inputs[3]] * 2)
    inputs[3] = inputs[3][1 : M + 1]
    check_operator(triton, inputs)
    check_repeatable(triton, inputs)


@every_triton('position', {name: i for i, name in enumerate(NAMES[:3])})
def test_nan_in_triton_stays_near(position, device):
    """It may reach all windows that share a tile with one that holds it."""
    inputs = make_inputs(grid=(33, 9), K=3, B=2, M=1, D=4, device=device)
    inputs[position] = inputs[position].clone()
    inputs[position][0, 1, 2, 0] = float('nan')
    out, grads = run_with_grads(triton, inputs)
    for x in (out, *grads[:3]):
        assert x[1].isfinite().all() and x[0, 24:].isfinite().all()
    assert out[0, 1, 2].isnan().all()
