"""Properties of the Triton kernels that only a GPU shows."""

import pytest
import torch
from ms_deform_cases import setup
from test_ms_deform_attn_triton import SMALL, on_gpu

from tools.benchmark.tolerances import run_with_grads


@pytest.mark.gpu
@on_gpu
def test_gpu_two_runs_are_equal():
    """22,223 queries with all points on one of 273 pixels."""
    shape = dict(shapes=((13, 21),), Q=22223, B=1, M=8, D=32, P=4)
    triton, inputs = setup('triton', **shape, dtype=torch.bfloat16, device='cuda')
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run_with_grads(triton, inputs)[1][0] for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)


@pytest.mark.gpu
@on_gpu
def test_gpu_compiles_nothing_anew_for_another_image_size():
    from mmattn.ops.ms_deform_attn.triton_bwd import _bwd_kernel
    from mmattn.ops.ms_deform_attn.triton_fwd import _fwd_kernel

    def run(side):
        shape = dict(SMALL, shapes=((side, side + 1), (1, 1)), Q=3 * side)
        triton, inputs = setup('triton', **shape, fused=True, device='cuda')
        run_with_grads(triton, inputs)
        device = torch.cuda.current_device()
        return [len(k.device_caches[device][0]) for k in (_fwd_kernel, _bwd_kernel)]

    assert run(1) == run(16) == run(31)


@pytest.mark.gpu
@on_gpu
def test_gpu_takes_triton_and_compiles():
    triton, inputs = setup('triton', **SMALL, fused=True, device='cuda')
    compiled = torch.compile(triton, fullgraph=True)
    assert torch.equal(compiled(*inputs), triton(*inputs))
