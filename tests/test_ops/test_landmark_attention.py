"""Landmark attention on the CPU: the definition, its oracles and the `cpu` backend."""

from functools import partial

import pytest
import torch
from operator_checks import (
    check_empty,
    check_nan_stays_in_its_image,
    check_operator,
    check_repeatable,
    every_case_in_float64,
    every_dtype,
)

from mmattn.ops import landmark_attention
from mmattn.ops.landmark_attention import (
    landmark_attention_folded,
    landmark_attention_reference,
    torch_impl,
)
from tools.benchmark.inputs import make_landmark_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

NAMES = 'q k v q_landmarks k_landmarks w1_q w2_q w1_k w2_k'.split()
SHAPES = {
    'one token': dict(N=1, L=1),
    'one token, more landmarks': dict(N=1, L=4),
    'tokens 63': dict(N=63, E=3),
    'grid 7x5, mixed heads 2M': dict(N=35, M=3, E=6),
    'one head': dict(M=1, E=1, N=31),
    'batch 1': dict(B=1, M=10, D=4, E=10, N=49, L=16),
    'tokens prime, landmarks no square': dict(N=101, L=7, M=4, E=4),
    'one landmark': dict(N=20, L=1, E=3),
    'heads 16': dict(B=1, N=20, L=5, M=16, E=16, D=4),
    'heads 32, no mixing': dict(B=1, N=20, L=5, M=32, D=4),
    'heads 32, mixed heads 64': dict(B=1, N=9, L=4, M=32, E=64, D=2),
    'fewer mixed heads': dict(M=4, E=2, N=13),
    'odd width': dict(D=5, E=3),
}

every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())


def backend(name):
    return partial(landmark_attention, backend=name)


@pytest.mark.parametrize('E', [None, 2, 3])
def test_reference_gradcheck(E):
    inputs = make_landmark_inputs(B=1, N=4, M=2, D=2, L=3, E=E, dtype=torch.float64)
    inputs = [x if x is None else x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(landmark_attention_reference, inputs)
    assert torch.autograd.gradgradcheck(backend('reference'), inputs)


@every_shape
def test_reference_against_folded_mixing(shape):
    inputs = make_landmark_inputs(**shape, dtype=torch.float64)
    check_operator(
        landmark_attention_folded, inputs, expected=landmark_attention_reference
    )


@every_shape
def test_reference_against_dense_map(shape):
    """Per head, out = (A_Q A_K) v with the N x N product formed."""
    inputs = make_landmark_inputs(**shape, dtype=torch.float64)
    q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k = inputs

    def attention_map(x, y, w1, w2):
        attn = torch.einsum('brmd,bsmd->bmrs', x, y) * x.shape[-1] ** -0.5
        if w1 is not None:
            attn = torch.einsum('em,bmrs->bers', w1, attn)
        attn = attn.exp() / attn.exp().sum(-1, keepdim=True)
        return attn if w2 is None else torch.einsum('me,bers->bmrs', w2, attn)

    dense = attention_map(q, k_landmarks, w1_q, w2_q) @ attention_map(
        q_landmarks, k, w1_k, w2_k
    )  # (B, M, N, N)
    expected = torch.einsum('bmrs,bsmd->brmd', dense, v)
    assert_close('out', expected, landmark_attention_reference(*inputs))


@every_case_in_float64(shape=SHAPES)
def test_cpu_backend(shape, dtype):
    check_operator(backend('torch'), make_landmark_inputs(**shape, dtype=dtype))


def test_cpu_backend_in_several_chunks(monkeypatch):
    monkeypatch.setattr(torch_impl, 'CHUNK_ELEMENTS', 64)
    monkeypatch.setattr(torch_impl, 'MIN_ROWS', 3)
    check_operator(backend('torch'), make_landmark_inputs(E=6))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_mixing_weights_in_half_precision(dtype):
    inputs = make_landmark_inputs(E=3, dtype=dtype, mixing_dtype=dtype)
    check_operator(backend('torch'), inputs)


def test_mixing_on_one_side_only():
    inputs = make_landmark_inputs(E=3)
    check_operator(backend('torch'), [*inputs[:5], None, None, *inputs[7:]])
    check_operator(backend('torch'), [*inputs[:7], None, None])


def test_batch_of_zero():
    check_empty(backend('torch'), make_landmark_inputs(B=0, E=3))


@pytest.mark.parametrize('wanted', NAMES)
def test_gradient_of_one_input(wanted):
    requires_grad = [name == wanted for name in NAMES]
    check_operator(backend('torch'), make_landmark_inputs(E=3), requires_grad)


def test_no_gradient_leaves_no_graph():
    assert not landmark_attention(*make_landmark_inputs(E=3)).requires_grad


@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_identity_mixing_is_no_mixing(name):
    inputs = make_landmark_inputs(M=4)
    mixed = [*inputs[:5], *[torch.eye(4)] * 4]
    assert_close('out', backend(name)(*inputs), backend(name)(*mixed))


def test_permuted_mixing_permutes_heads():
    """out_m = A of head p(m) on v of head m when w1 is the permutation p."""
    inputs, order = make_landmark_inputs(M=4), torch.tensor([2, 0, 3, 1])
    eye = torch.eye(4)
    q, k, v, q_landmarks, k_landmarks = inputs[:5]
    expected = landmark_attention(
        *(x[:, :, order] for x in (q, k)),
        v,
        *(x[:, :, order] for x in (q_landmarks, k_landmarks)),
    )
    out = landmark_attention(*inputs[:5], eye[order], eye, eye[order], eye)
    assert_close('out', expected, out)


@every_dtype
def test_large_scores_stay_finite(dtype):
    inputs = make_landmark_inputs(E=3, dtype=dtype)
    q, k, *rest = inputs
    out, grads = run_with_grads(backend('torch'), [q * 100, k * 100, *rest])
    assert all(x.isfinite().all() for x in (out, *grads))


def test_nan_stays_in_its_batch_element():
    inputs = make_landmark_inputs(B=3, E=3)
    check_nan_stays_in_its_image(backend('torch'), inputs, 0)


def test_two_runs_are_equal():
    check_repeatable(backend('torch'), make_landmark_inputs(N=200, E=6))


@pytest.mark.parametrize('enabled', [True, False])
def test_autocast(enabled):
    inputs = make_landmark_inputs(E=3)
    with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
        out, grads = run_with_grads(landmark_attention, inputs)
    assert out.dtype == (torch.bfloat16 if enabled else torch.float32)
    expected, expected_grads = run_with_grads(landmark_attention_reference, inputs)
    assert_close('out', expected, out)
    for name, e, a in zip(NAMES, expected_grads, grads, strict=True):
        assert a.dtype == torch.float32
        rounded = torch.bfloat16 if enabled else None
        assert_close(f'grad of {name}', e, a, rounded)
