"""Every kernel compiles for sm_80 and sm_90 here, without spills and local memory."""

from math import prod

import pytest
import torch

triton_stencil = pytest.importorskip('mmattn.ops.masked_attention.triton_stencil')

from aot import record_launches, resources  # noqa: E402

from mmattn.ops import triton_launch  # noqa: E402
from mmattn.ops.masked_attention import (  # noqa: E402
    triton_impl,
    triton_soft,
    triton_special,
    triton_stencil_bwd,
)
from tools.benchmark.inputs import make_masked_inputs  # noqa: E402

pytestmark = pytest.mark.skipif(
    triton_launch.INTERPRETED, reason='kernels made for the interpreter do not compile'
)

HALF, FULL = torch.bfloat16, torch.float32
SHARED_MEMORY = 99 * 1024  # bytes of a block on the smallest device of sm_8x
MODULES = (triton_stencil, triton_stencil_bwd, triton_special, triton_soft)
FAST = {
    ('hard, H-MaiT stage 1, bfloat16', 80),
    ('hard, H-MaiT stage 1, float32', 90),
    ('hard, MaiT-XS, R 7, bfloat16', 90),
    ('hard, neg_inf, float32', 90),
    ('soft, MaiT-T, bfloat16', 90),
}
SHAPES = {
    f'{name}, {str(dtype)[6:]}': (shape, dtype)
    for name, shape in {
        'hard, H-MaiT stage 1': dict(
            grid=(56, 56), M=3, D=32, num_special=0, bias=True
        ),
        'hard, detection': dict(grid=(200, 334), B=2, M=3, D=32, num_special=0),
        'hard, MaiT-T': dict(grid=(14, 14), M=3, D=64),
        'hard, MaiT-XT, distilled': dict(grid=(14, 14), M=3, D=48, num_special=2),
        'hard, MaiT-XS, R 7': dict(grid=(14, 14), M=3, D=96, kernel_size=7),
        'hard, width 16, R 5': dict(grid=(14, 14), D=16, kernel_size=5, bias=True),
        'hard, width 128': dict(grid=(28, 28), D=128, num_special=0),
        'hard, width 5': dict(grid=(7, 5), B=1, M=1, D=5, bias=True),
        'hard, neg_inf': dict(grid=(7, 5), D=32, bias=True, mask_fill='neg_inf'),
        'hard, neg_inf, no special token': dict(
            grid=(7, 5), D=32, num_special=0, mask_fill='neg_inf'
        ),
        'hard, one token': dict(grid=(1, 1), B=1, M=1, D=1, num_special=0),
        'soft, MaiT-XT': dict(grid=(14, 14), M=3, D=48, alpha=True),
        'soft, MaiT-T': dict(grid=(14, 14), M=3, D=64, alpha=True),
        'soft, MaiT-XS': dict(grid=(14, 14), M=3, D=96, num_special=2, alpha=True),
        'soft, detection': dict(grid=(50, 84), D=32, num_special=0, alpha=True),
        'soft, width 128': dict(grid=(28, 28), D=128, kernel_size=5, alpha=True),
        'soft, width 16': dict(grid=(7, 5), D=16, alpha=True),
        'soft, width 5, one token': dict(
            grid=(1, 1), B=1, M=1, D=5, num_special=0, alpha=True
        ),
    }.items()
    for dtype in (FULL, HALF, torch.float16)
}  # fmt: skip
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


def launches_of(shape, dtype):
    """List the launches of forward and backward, once each."""
    shape = dict(grid=(7, 5), num_special=1, kernel_size=3) | shape
    stencil = {key: shape[key] for key in ('grid', 'num_special', 'kernel_size')}
    stencil['mask_fill'] = shape.pop('mask_fill', 'zero')
    inputs = make_masked_inputs(**shape, dtype=dtype)
    inputs = [None if x is None else x.to('meta') for x in inputs]
    with record_launches(*MODULES) as launches:
        out, lse = triton_impl.forward(*inputs, **stencil)
        triton_impl.backward(out, out, lse, *inputs, **stencil)
    assert lse.shape[2] == stencil['num_special'] + prod(stencil['grid'])
    return {repr(launch): launch for launch in launches}.values()


def assert_fits(launches, capability):
    for launch in launches:
        usage = resources(launch, capability)
        print(launch.kernel, launch.constants, capability, usage)  # with pytest -s
        assert usage['STACK'] == 0 and usage['LOCAL'] == 0, (launch, usage)
        assert usage['SHARED'] <= SHARED_MEMORY, (launch, usage)


@pytest.mark.parametrize('shape, dtype, capability', PAIRS)
def test_no_spill_and_no_local_memory(shape, dtype, capability):
    launches = launches_of(shape, dtype)
    kernels = {launch.kernel for launch in launches}
    if 'alpha' in shape:
        assert kernels == {
            '_soft_fwd_kernel',
            '_delta_kernel',
            '_soft_bwd_queries_kernel',
            '_soft_bwd_keys_kernel',
        }
    else:
        assert kernels >= {'_fwd_kernel', '_bwd_queries_kernel', '_bwd_keys_kernel'}
    assert_fits(launches, capability)
