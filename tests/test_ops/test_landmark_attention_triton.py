"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from operator_checks import (
    check_call,
    check_empty,
    check_nan_stays_in_its_image,
    check_operator,
    check_repeatable,
    every_real_call,
    names_of,
)
from triton_devices import (
    each_of,
    every_device,
    every_dtype,
    opcheck,
    outer_run,
    run_under_interpreter,
    seldom,
    seldom_interpreted,
)

from mmattn.ops import landmark_attention
from mmattn.ops.landmark_attention import triton_impl
from tools.benchmark.inputs import make_landmark_inputs
from tools.benchmark.tolerances import run_with_grads

pytest.importorskip('triton')

SHAPES = {
    'one token': dict(N=1, L=1, M=2, E=2),
    'one token, more landmarks': dict(B=1, N=1, L=4),
    'tokens 63': dict(B=1, N=63, E=3),
    'grid 7x5, mixed heads 2M': dict(N=35, L=4, E=6),
    'one head': dict(B=1, M=1, E=1, N=31, L=20),
    'one landmark': dict(B=1, N=20, L=1, M=2, E=2),
    'tokens prime, no mixing': dict(N=37, L=7, M=2),
    'heads 10, width 32': dict(B=1, N=17, L=9, M=10, D=32, E=10),
    'heads 16': dict(B=1, N=20, L=5, M=16, E=16, D=4),
    'two blocks of mixed heads': dict(B=1, N=17, L=18, M=3, E=17),
    'fewer tokens than landmarks': dict(B=1, N=20, L=40, M=2, E=3, D=16),
    'landmarks in two tiles': dict(B=1, N=18, L=66, M=1, E=2),
    'landmarks and tokens in two tiles': dict(B=1, N=70, L=66, M=2, E=2),
    'width 32': dict(B=1, N=5, L=3, M=2, D=32, E=2),
    'landmarks in two tiles, no mixing': dict(B=1, N=70, L=66, M=2),
    'width 40 in three chunks': dict(B=1, N=20, L=5, M=2, D=40, E=2),
}

triton = functools.partial(landmark_attention, backend='triton')


@outer_run
def test_under_interpreter(cases):
    run_under_interpreter(__file__, cases)


@every_device
@pytest.mark.parametrize(
    'shape',
    each_of(
        SHAPES,
        'tokens 63',
        'grid 7x5, mixed heads 2M',
        'heads 10, width 32',
        'heads 16',
        'landmarks in two tiles, no mixing',
        'landmarks and tokens in two tiles',
    ),
)
def test_against_reference(shape, device):
    check_operator(triton, make_landmark_inputs(**shape, device=device))


@every_device
@pytest.mark.parametrize(
    'E, dtype',
    [
        seldom(None, torch.float32),
        seldom(None, torch.float16),
        (None, torch.bfloat16),
        seldom(3, torch.float32),
        (3, torch.float16),
        seldom(3, torch.bfloat16),
    ],
)
def test_dtypes(E, dtype, device):
    check_operator(
        triton, make_landmark_inputs(B=1, N=20, E=E, dtype=dtype, device=device)
    )


@every_device
@pytest.mark.parametrize('programs', [seldom(1), 4])
def test_split_of_loops_over_programs(monkeypatch, programs, device):
    """One program for all tiles, and several with several tiles each."""
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', programs)
    check_operator(
        triton,
        make_landmark_inputs(
            B=1, N=140, L=5, M=2, E=2, dtype=torch.float16, device=device
        ),
    )
    check_operator(triton, make_landmark_inputs(B=1, N=140, L=5, M=1, device=device))


@every_device
def test_expanded_and_permuted_inputs(device):
    q, k, v, q_landmarks, k_landmarks, *mixing = make_landmark_inputs(
        N=20, M=2, L=5, E=2, device=device
    )
    inputs = [
        q[:1].expand(2, -1, -1, -1),
        k.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),  # D is not last
        v.flip(1),
        q_landmarks,
        k_landmarks,
        *(w.T.contiguous().T for w in mixing),
    ]
    check_operator(triton, inputs)


@every_device
def test_half_precision_mixing_and_requires_grad_subset(device):
    inputs = make_landmark_inputs(
        B=1, N=20, E=3, dtype=torch.bfloat16, mixing_dtype=torch.bfloat16, device=device
    )
    wanted = [name in ('k', 'w2_k') for name in names_of(triton, inputs)]
    check_operator(triton, inputs, wanted)


@every_device
def test_batch_of_zero(device):
    check_empty(triton, make_landmark_inputs(B=0, E=3, device=device))


@every_device
@pytest.mark.parametrize(
    'dtype', [seldom(torch.float32), torch.float16, seldom(torch.bfloat16)], ids=str
)
def test_large_scores_stay_finite(dtype, device):
    q, k, *rest = make_landmark_inputs(
        B=1, N=70, M=2, L=5, E=2, dtype=dtype, device=device
    )
    out, grads = run_with_grads(triton, [q * 100, k * 100, *rest])
    assert all(x.isfinite().all() for x in (out, *grads))


@every_device
def test_nan_stays_in_its_batch_element(device):
    inputs = make_landmark_inputs(B=3, N=6, M=1, L=2, E=1, device=device)
    check_nan_stays_in_its_image(triton, inputs, 0)


@seldom_interpreted
@every_device
def test_two_runs_are_equal(device):
    inputs = make_landmark_inputs(B=1, N=70, M=2, L=5, E=2, device=device)
    check_repeatable(triton, inputs)


@every_device
def test_opcheck(device):
    inputs = make_landmark_inputs(B=1, N=4, M=1, L=2, E=2, device=device)
    inputs = [x.detach().requires_grad_() for x in inputs]
    opcheck(torch.ops.mmattn.landmark_attention, (*inputs, 'triton'), device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
@every_dtype
@every_real_call('landmark_attention')
def test_real_shapes(call, dtype):
    check_call(call, 'triton', dtype, 'cuda')


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
def test_gpu_takes_triton_and_compiles():
    inputs = make_landmark_inputs(N=50, E=3, device='cuda')
    compiled = torch.compile(landmark_attention, fullgraph=True)
    assert torch.equal(compiled(*inputs), triton(*inputs))
