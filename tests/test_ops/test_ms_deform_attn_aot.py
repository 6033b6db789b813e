"""Every kernel compiles for sm_80 and sm_90 here, without spills and local memory, with
loads and atomic additions of 16 bytes."""

import re

import pytest
import torch

triton_fwd = pytest.importorskip('mmattn.ops.ms_deform_attn.triton_fwd')

from aot import instructions, record_launches, resources  # noqa: E402

from mmattn.ops import triton_launch  # noqa: E402
from mmattn.ops.ms_deform_attn import triton_bwd, triton_impl  # noqa: E402
from tools.benchmark.inputs import make_ms_deform_inputs  # noqa: E402
from tools.benchmark.real_shapes import PYRAMID  # noqa: E402

pytestmark = pytest.mark.skipif(
    triton_launch.INTERPRETED, reason='kernels made for the interpreter do not compile'
)

SHARED_MEMORY = 99 * 1024  # bytes of a block on the smallest device of sm_8x
DETR = dict(shapes=PYRAMID, Q=300, B=1, M=8, D=32, P=4)
FAST = {
    ('Deformable DETR, bfloat16, atomics', 90),
    ('locations, float32, in order', 80),
}
CELLS = {
    f'{name}, {str(dtype)[6:]}, {order}': (shape, dtype, order)
    for name, shape in {
        'Deformable DETR': dict(DETR, fused=True),
        'Deformable DETR, boxes': dict(DETR, fused=True, boxes=True),
        'locations': DETR,
        'Mask2Former': dict(DETR, shapes=PYRAMID[1:], fused=True),
        'ViT-Adapter': dict(DETR, shapes=PYRAMID[:1], M=12, D=64, fused=True),
        'levels 8': dict(DETR, shapes=PYRAMID * 2, fused=True, boxes=True),
        'points 37': dict(DETR, P=37, fused=True),
        'points 2048': dict(DETR, shapes=PYRAMID * 2, P=256, fused=True),
        'width 8': dict(DETR, D=8, fused=True),
        'width 30': dict(DETR, D=30, fused=True),
        'width 48': dict(DETR, D=48, fused=True),
        'width 71': dict(DETR, D=71, fused=True),
        'width 128': dict(DETR, D=128, fused=True),
        'width 256, boxes': dict(DETR, D=256, fused=True, boxes=True),
        'one of everything': dict(shapes=((1, 1),), Q=1, B=1, M=1, D=1, P=1),
    }.items()
    for dtype, order in (
        (torch.float32, 'atomics'),
        (torch.float32, 'in order'),
        (torch.bfloat16, 'atomics'),
        (torch.bfloat16, 'in order'),
        (torch.float16, 'atomics'),
    )
    if name in ('Deformable DETR', 'locations')
    or (dtype, order) in ((torch.float32, 'atomics'), (torch.bfloat16, 'in order'))
}
PAIRS = [
    pytest.param(
        *cell,
        capability,
        id=f'{name}, sm_{capability}',
        marks=[] if (name, capability) in FAST else pytest.mark.slow,
    )
    for name, cell in CELLS.items()
    for capability in (80, 90)
]


def launches_of(shape, dtype, order='atomics'):
    """List the launches of forward and backward, once each."""
    inputs = make_ms_deform_inputs(**shape, dtype=dtype)
    inputs = [x if x is None else x.to('meta') for x in inputs]
    shapes = [side for level in shape['shapes'] for side in level]
    torch.use_deterministic_algorithms(order == 'in order')
    try:
        with record_launches(triton_fwd, triton_bwd) as launches:
            out = triton_impl.forward(*inputs, shapes=shapes)
            triton_impl.backward(out, *inputs, shapes=shapes)
    finally:
        torch.use_deterministic_algorithms(False)
    return [*{repr(x): x for x in launches}.values()]


def count(pattern, launch, capability):
    return len(re.findall(pattern, instructions(launch, capability)))


@pytest.mark.parametrize('shape, dtype, order, capability', PAIRS)
def test_no_spill_and_no_local_memory(shape, dtype, order, capability):
    launches = launches_of(shape, dtype, order)
    kernels = ['_fwd_kernel', '_bwd_kernel', '_bwd_value_kernel']
    assert [x.kernel for x in launches] == kernels[: 2 if order == 'atomics' else 3]
    for launch in launches:
        usage = resources(launch, capability)
        print(launch.kernel, launch.constants, capability, usage)  # with pytest -s
        assert usage['STACK'] == 0 and usage['LOCAL'] == 0, (launch, usage)
        assert usage['SHARED'] <= SHARED_MEMORY, (launch, usage)
    if shape['D'] % 8:
        return
    forward, backward = launches[:2]
    samples = 4 * len(shape['shapes'])
    assert count(r'ld\.global\.v4\.b32', forward, capability) >= samples
    wide = r'ld\.global\.v4\.b32' if dtype == torch.float32 else r'ld\.global\.v2\.b32'
    assert count(wide, backward, capability) >= samples
    vectors = count(r'(red|atom)\.global\.\S*add\.v4\.f32', backward, capability)
    single = count(r'(red|atom)\.global\.\S*add\.f32', backward, capability)
    if order == 'in order':
        assert vectors == single == 0
    elif capability >= 90:
        assert vectors >= samples and not single
    else:
        assert single >= samples and not vectors  # sm_80 has no others
    assert not count(r'atom\.\S*cas', backward, capability)


@pytest.mark.parametrize(
    'form',
    [dict(), dict(fused=True), dict(fused=True, boxes=True)],
    ids=['locations', 'points', 'boxes'],
)
def test_a_launch_each_way_for_images_of_any_size(form):
    """Compilation does not depend on sides of levels and numbers of queries."""
    compiled = set()
    for sides, Q in (((7, 5), 31), ((16, 32), 64), ((1, 1), 1)):
        shape = dict(shapes=(sides,), Q=Q, B=1, M=3, D=8, **form)
        launches = launches_of(shape, torch.float32)
        assert [x.kernel for x in launches] == ['_fwd_kernel', '_bwd_kernel']
        launches += launches_of(shape, torch.float32, 'in order')
        compiled.add(repr(launches))
    assert len(compiled) == 1
