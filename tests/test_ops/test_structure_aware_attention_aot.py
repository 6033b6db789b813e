"""Every kernel compiles for sm_80 and sm_90 here, without spills and local memory."""

from math import prod

import pytest
import torch

triton_fwd = pytest.importorskip('mmattn.ops.structure_aware_attention.triton_fwd')

from aot import record_launches, resources  # noqa: E402

from mmattn.ops import triton_launch  # noqa: E402
from mmattn.ops.structure_aware_attention import (  # noqa: E402
    rfft_grid,
    triton_bwd,
    triton_impl,
    triton_large,
)
from tools.benchmark.inputs import make_structure_aware_inputs  # noqa: E402

pytestmark = pytest.mark.skipif(
    triton_launch.INTERPRETED, reason='kernels made for the interpreter do not compile'
)

HALF, FULL = torch.bfloat16, torch.float32
SHARED_MEMORY = 99 * 1024  # bytes of a block on the smallest device of sm_8x
FAST = {
    ('7x7, K 8, bfloat16', 80),
    ('14x14, K 8, float32', 90),
}
SHAPES = {
    f'{"x".join(map(str, grid))}, K {K}, {str(dtype)[6:]}': (grid, B, M, 16, K, dtype)
    for grid, B, M in [
        ((7, 7), 32, 24),
        ((7, 5), 2, 3),
        ((14, 14), 32, 20),
        ((28, 28), 32, 8),
        ((56, 56), 32, 4),
        ((64, 64), 32, 4),
        ((64, 7), 1, 1),
        ((64, 28), 1, 1),
        ((28, 14), 1, 1),
        ((28, 56), 1, 1),
        ((14, 28), 1, 1),
        ((14, 56), 1, 1),
        ((64,), 2, 3),
        ((84, 84), 32, 12),
        ((4, 14, 14), 8, 12),
    ]
    for K in (8, 16)
    for dtype in (FULL, HALF)
} | {
    'one token': ((1, 1), 1, 1, 1, 1, FULL),
    'one pattern, width 5': ((14, 14), 1, 1, 5, 1, FULL),
    'width 128, patterns 33': ((28, 28), 2, 3, 128, 33, FULL),
    'width 128, large grid': ((66, 66), 2, 3, 128, 33, FULL),
}
PAIRS = [
    pytest.param(
        *shape,
        capability,
        id=f'{name}, sm_{capability}',
        marks=[] if (name, capability) in FAST else pytest.mark.slow,
    )
    for name, shape in SHAPES.items()
    for capability in (80, 90)
]


def launches_of(grid, B, M, D, K, dtype):
    """List the launches of forward and backward, once each."""
    inputs = make_structure_aware_inputs(grid=grid, B=1, M=M, D=D, K=K, dtype=dtype)
    q, k, v, w_a, w_b, bias = (x.to('meta') for x in inputs)
    q, k, v = (x.new_empty(B, 3, *x.shape[1:]).unbind(1)[0] for x in (q, k, v))
    w_a, w_b = (torch.view_as_real(rfft_grid(w, grid)) for w in (w_a, w_b))
    tensors = q, k, v, w_a, w_b, bias
    with record_launches(triton_fwd, triton_bwd, triton_large) as launches:
        out, patterns = triton_impl.forward(*tensors, grid=grid)
        triton_impl.backward(out, patterns, *tensors, grid=grid)
    assert patterns.shape == (B, M, K, prod(grid))
    return {repr(launch): launch for launch in launches}.values()


@pytest.mark.parametrize('grid, B, M, D, K, dtype, capability', PAIRS)
def test_no_spill_and_no_local_memory(grid, B, M, D, K, dtype, capability):
    launches = launches_of(grid, B, M, D, K, dtype)
    small = {'_spectrum_kernel', '_contract_kernel', '_bwd_correlate_kernel'}
    large = {'_product_kernel', '_maps_kernel', '_bwd_maps_kernel'}
    assert {x.kernel for x in launches} >= (
        small if triton_impl._is_small(grid) else large
    )
    for launch in launches:
        usage = resources(launch, capability)
        print(launch.kernel, launch.constants, capability, usage)  # with pytest -s
        assert usage['STACK'] == 0 and usage['LOCAL'] == 0, (launch, usage)
        assert usage['SHARED'] <= SHARED_MEMORY, (launch, usage)
