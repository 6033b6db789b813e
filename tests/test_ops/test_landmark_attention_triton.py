"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from operator_cases import names_of
from operator_checks import check_operator
from triton_devices import every_device, every_triton

from mmattn.ops import landmark_attention
from mmattn.ops.landmark_attention import triton_impl
from tools.benchmark.inputs import make_landmark_inputs
from tools.benchmark.tolerances import TOLERANCES, run_with_grads

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


@every_triton('shape', SHAPES)
def test_against_reference(shape, device):
    check_operator(triton, make_landmark_inputs(**shape, device=device))


@every_triton('programs', {'1 program': 1, '4 programs': 4})
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
@pytest.mark.parametrize('N, L, index, most', [(140, 5, 1, 30), (20, 70, 4, 6)])
def test_scores_that_grow(monkeypatch, N, L, index, most, device):
    """Sums of earlier tiles shrink where a later one scores far higher."""
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', 1)
    inputs = list(make_landmark_inputs(B=1, N=N, L=L, M=2, E=2, device=device))
    columns = inputs[index]
    growth = torch.linspace(1, most, columns.shape[1], device=device)
    inputs[index] = columns * growth[:, None, None]
    check_operator(triton, inputs)


@functools.wraps(landmark_attention)
def steep(*tensors, backend='triton'):
    return 2**14 * landmark_attention(*tensors, backend=backend)


@every_triton('E', {'mixing': 2, 'no mixing': None})
def test_folded_gradients_beyond_float16(E, device):
    """They are sums over tokens, while all gradients are in the range of float16."""
    q, k, v, *rest = make_landmark_inputs(
        B=1, N=300, L=2, M=2, E=E, dtype=torch.float16, device=device
    )
    check_operator(steep, [q, k, v / 16, *rest])


class RoundedSoftmax(torch.autograd.Function):
    """Softmax of scores that are rounded to float32 after their normalization."""

    @staticmethod
    def forward(ctx, scores, dim):
        noise = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))
        rounded = scores * (1 + torch.finfo(torch.float32).eps * noise.to(scores))
        prob = (rounded - scores.logsumexp(dim, keepdim=True)).exp()
        ctx.save_for_backward(prob)
        return prob

    @staticmethod
    def backward(ctx, grad):
        (prob,) = ctx.saved_tensors
        return prob * (grad - (prob * grad).sum(-1, keepdim=True)), None


@every_device
def test_errors_at_large_scores_are_of_rounding(monkeypatch, device):
    """The backward computes scores again, in another order than their log-sum-exps.

    Autograd of the definition keeps maps instead, so that its errors are smaller.
    """
    inputs = make_landmark_inputs(B=1, N=30, L=5, M=2, E=2, device=device)
    for i, most in zip((0, 1, 3, 4), (30, 30, 4, 4), strict=True):
        steps = torch.linspace(1, most, inputs[i].shape[1], device=device)
        inputs[i] = inputs[i] * steps[:, None, None]
    definition = functools.partial(landmark_attention, backend='reference')
    _, exact = run_with_grads(definition, inputs, dtype=torch.float64)
    _, grads = run_with_grads(triton, inputs)
    softmax = lambda scores, dim: RoundedSoftmax.apply(scores, dim)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, 'softmax', softmax)
    _, rounded = run_with_grads(definition, inputs, dtype=torch.float64)
    for name, expected, actual, other in zip(
        names_of('landmark_attention'), exact, grads, rounded, strict=True
    ):
        rms, error, noise = (
            x.double().square().mean().sqrt()
            for x in (expected, actual - expected, other - expected)
        )
        assert error <= TOLERANCES[torch.float32].rms * rms + noise, name


@every_triton('first', {'queries': 5, 'keys': 7})
def test_mixing_on_one_side_only(first, device):
    inputs = make_landmark_inputs(
        B=1, N=20, L=3, M=2, E=3, dtype=torch.bfloat16, device=device
    )
    mixing = [x if i - first in (0, 1) else None for i, x in enumerate(inputs)]
    check_operator(triton, [*inputs[:5], *mixing[5:]])
