"""Landmark attention on the CPU: the definition, its oracles and the CPU backends."""

from functools import partial

import pytest
import torch
from compiled_extension import by_compiled, by_cpu_backend
from operator_checks import assert_equal, check_operator, every_case, supported, threads

from mmattn.ops import landmark_attention
from mmattn.ops.landmark_attention import (
    landmark_attention_folded,
    landmark_attention_reference,
    torch_impl,
)
from tools.benchmark.inputs import make_landmark_inputs
from tools.benchmark.tolerances import run_with_grads

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
    'parts of tokens': dict(N=401, L=9, M=2, D=20, E=3),
}


@pytest.fixture
def attention(backend):
    return partial(landmark_attention, backend=backend)


def dense(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Per head, out = (A_Q A_K) v with the N x N product formed."""

    def attention_map(x, y, w1, w2):
        attn = torch.einsum('brmd,bsmd->bmrs', x, y) * x.shape[-1] ** -0.5
        if w1 is not None:
            attn = torch.einsum('em,bmrs->bers', w1, attn)
        attn = attn.exp() / attn.exp().sum(-1, keepdim=True)
        return attn if w2 is None else torch.einsum('me,bers->bmrs', w2, attn)

    of_queries = attention_map(q, k_landmarks, w1_q, w2_q)
    attn = of_queries @ attention_map(q_landmarks, k, w1_k, w2_k)  # (B, M, N, N)
    return torch.einsum('bmrs,bsmd->brmd', attn, v)


@pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES)
def test_definitions_against_dense_map(shape):
    inputs = make_landmark_inputs(**shape, dtype=torch.float64)
    for definition in (landmark_attention_reference, landmark_attention_folded):
        check_operator(definition, inputs, expected=dense)


@by_cpu_backend
@every_case(shape=SHAPES)
def test_cpu_backends(attention, backend, shape, dtype):
    dtype = supported(backend, dtype)
    check_operator(attention, make_landmark_inputs(**shape, dtype=dtype))


@pytest.mark.parametrize('backend', ['torch'])
def test_torch_backend_in_several_chunks(attention, monkeypatch):
    monkeypatch.setattr(torch_impl, 'CHUNK_ELEMENTS', 64)
    monkeypatch.setattr(torch_impl, 'MIN_ROWS', 3)
    check_operator(attention, make_landmark_inputs(E=6))


@by_cpu_backend
def test_mixing_on_one_side_only(attention):
    inputs = make_landmark_inputs(E=3)
    check_operator(attention, [*inputs[:5], None, None, *inputs[7:]])
    check_operator(attention, [*inputs[:7], None, None])


@by_cpu_backend
def test_scores_far_below_zero(attention):
    """What pads a tile of tokens has no weight."""
    q, k, v, q_landmarks, k_landmarks = make_landmark_inputs(N=37)[:5]
    inputs = [-20 * q.abs(), -20 * k.abs(), v, q_landmarks.abs(), k_landmarks.abs()]
    check_operator(attention, inputs)


@by_compiled
def test_threads_change_no_result(attention):
    inputs, results = make_landmark_inputs(N=401, L=9, E=3), []
    for count in (1, 3):
        with threads(count):
            results.append(run_with_grads(attention, inputs))
    assert_equal(*results)
