"""Tests that need a GPU: real shapes, memory, compilation."""

from functools import partial

import pytest
import torch
from operator_cases import OPERATORS, kernels, on_gpu, setup, with_grad
from operator_checks import check_call

from mmattn.ops.deformable_attention import triton_impl
from tools.benchmark.real_shapes import real_calls
from tools.benchmark.tolerances import deterministic, run_with_grads

pytestmark = on_gpu
CALLS = {
    f'{name}, {call}': (name, call) for name in OPERATORS for call in real_calls(name)
}


@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:]
)
@pytest.mark.parametrize('name, call', CALLS.values(), ids=CALLS)
def test_real_shapes(name, call, dtype):
    if name == 'neighborhood_attention':
        check_call(call, 'torch', dtype, 'cuda')
        check_call(call, None, torch.float64, 'cuda')
    check_call(call, 'triton', dtype, 'cuda')


@pytest.mark.parametrize(
    'case, backend, device', [x for x in kernels() if 'cuda' in x.values]
)
def test_it_is_the_choice_and_compiles(case, backend, device):
    function, inputs = case.setup(None, device=device)
    compiled = torch.compile(function, fullgraph=True)
    named = case.setup(backend, device=device)[0]
    assert torch.equal(compiled(*inputs), named(*inputs))


LARGE = dict(grid=(200, 334), B=1, D=32, device='cuda')
HEADS = dict(LARGE, M=2, G=1, K=1025, table_size=(111, 111))


@pytest.mark.parametrize(
    'name, shape, times, fixed',
    [
        ('masked_attention', dict(LARGE, M=1, num_special=0), 16, 0),
        ('masked_attention', dict(LARGE, M=1, num_special=0, alpha=True), 16, 0),
        ('deformable_attention', HEADS, 8, 4 * triton_impl.WORKSPACE),
    ],
    ids=['hard', 'soft', 'deformable'],
)
def test_memory_is_linear_in_queries(name, shape, times, fixed):
    """A map of scores alone would be 17 GB, and with 1025 keys 548 MB."""
    triton, inputs = setup(name, 'triton', **shape)
    leaves = with_grad(inputs)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = triton(*leaves)
    out.sum().backward()
    extra = torch.cuda.max_memory_allocated() - before - fixed
    assert extra < times * out.nbytes


def test_two_runs_are_equal_however_many_points_meet():
    """22,223 queries with all points on one of 273 pixels."""
    shape = dict(shapes=((13, 21),), Q=22223, B=1, M=8, D=32, P=4)
    triton, inputs = setup(
        'ms_deform_attn', 'triton', **shape, dtype=torch.bfloat16, device='cuda'
    )
    with deterministic():
        first, second = (run_with_grads(triton, inputs)[1][0] for _ in range(2))
    assert torch.equal(first, second)


def test_nothing_is_compiled_anew_for_another_image_size():
    from mmattn.ops.ms_deform_attn.triton_bwd import _bwd_kernel
    from mmattn.ops.ms_deform_attn.triton_fwd import _fwd_kernel

    attend = partial(setup, 'ms_deform_attn', 'triton', B=1, M=2, D=4, fused=True)

    def run(side):
        shapes = (side, side + 1), (1, 1)
        run_with_grads(*attend(shapes=shapes, Q=3 * side, device='cuda'))
        device = torch.cuda.current_device()
        return [len(k.device_caches[device][0]) for k in (_fwd_kernel, _bwd_kernel)]

    assert run(1) == run(16) == run(31)
