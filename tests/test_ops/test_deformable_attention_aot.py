"""Every kernel compiles for sm_80 and sm_90 here, without spills and local memory."""

import pytest

triton_fwd = pytest.importorskip('mmattn.ops.deformable_attention.triton_fwd')

from aot import record_launches, resources  # noqa: E402

from mmattn.ops import triton_launch  # noqa: E402
from mmattn.ops.deformable_attention import triton_bwd, triton_impl  # noqa: E402
from tools.benchmark.inputs import make_deformable_inputs  # noqa: E402

pytestmark = pytest.mark.skipif(
    triton_launch.INTERPRETED, reason='kernels made for the interpreter do not compile'
)

SHARED_MEMORY = 99 * 1024  # bytes of a block on the smallest device of sm_8x
FAST = {
    ('DAT++ stage 3, bfloat16', 90),
    ('DAT++ stage 3 in a detector, float32', 80),
}
SHAPES = {
    f'{name}, {str(dtype)[6:]}': (shape, dtype)
    for name, shape in {
        'DAT++ stage 1': dict(grid=(56, 56), K=49, M=2, G=1, D=32),
        'DAT++ stage 3': dict(grid=(14, 14), K=49, M=8, G=4, D=32),
        'DAT++ stage 1 in a detector': dict(
            grid=(200, 334), K=1025, B=1, M=2, G=1, D=32, table_size=(111, 111)
        ),
        'DAT++ stage 3 in a detector': dict(
            grid=(50, 84), K=1050, B=1, M=8, G=4, D=32, table_size=(27, 27)
        ),
        'window, width 16': dict(grid=(7, 5), K=11, D=16),
        'window, width 48': dict(grid=(28, 28), K=49, D=48),
        'window, width 64': dict(grid=(28, 28), K=49, D=64),
        'four taps, width 16': dict(grid=(7, 5), K=11, D=16, table_size=(9, 9)),
        'four taps, width 48': dict(grid=(28, 28), K=49, D=48, table_size=(27, 27)),
        'four taps, width 64': dict(grid=(28, 28), K=49, D=64, table_size=(27, 27)),
        'one query, one key': dict(grid=(1, 1), K=1, B=1, M=1, G=1, D=5),
    }.items()
    for dtype in triton_launch.DTYPES
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


def launches_of(shape, dtype):
    """List the launches of forward and backward, once for each alignment."""
    inputs = make_deformable_inputs(**shape, dtype=dtype)
    inputs = [x.to('meta') for x in inputs]
    settings = dict(grid=shape['grid'], align_corners=True)
    with record_launches(triton_fwd, triton_bwd) as launches:
        out, lse = triton_impl.forward(*inputs, **settings)
        triton_impl.backward(out, out, lse, *inputs, **settings)
    return {(x.kernel, repr(x.constants)): x for x in launches}.values()


@pytest.mark.parametrize('shape, dtype, capability', PAIRS)
def test_no_spill_and_no_local_memory(shape, dtype, capability):
    launches = launches_of(shape, dtype)
    assert {launch.kernel for launch in launches} == {
        '_fwd_kernel',
        '_bwd_queries_kernel',
        '_bwd_table_kernel',
        '_bwd_keys_kernel',
    }
    for launch in launches:
        usage = resources(launch, capability)
        print(launch.kernel, launch.constants, capability, usage)  # with pytest -s
        assert usage['STACK'] == 0 and usage['LOCAL'] == 0, (launch, usage)
        assert usage['SHARED'] <= SHARED_MEMORY, (launch, usage)
