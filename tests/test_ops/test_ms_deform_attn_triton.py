"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from largest_tensor import LargestTensor
from operator_cases import setup as setup_operator
from operator_checks import assert_equal, check_operator
from triton_devices import every_device, every_triton

from mmattn.ops.ms_deform_attn import triton_impl
from tools.benchmark.tolerances import deterministic, run_with_grads

pytest.importorskip('triton')

SMALL = dict(shapes=((3, 4), (1, 1)), Q=5, B=1, M=2, D=4)
SHAPES = {
    'one of everything': dict(shapes=((1, 1),), Q=1, B=1, M=1, D=1, P=1),
    'queries 31, batch 2, heads 3': dict(shapes=((7, 5), (1, 1)), Q=31, P=1),
    'points 3 of 4': dict(SMALL, P=3),
    'points 37': dict(SMALL, Q=2, P=37),
    'levels 8': dict(shapes=tuple((i, 9 - i) for i in range(1, 9)), Q=2, B=1, M=1),
    'a row and a column': dict(SMALL, shapes=((1, 9), (8, 1))),
    'width 8': dict(SMALL, D=8),
    'width 30': dict(SMALL, D=30),
    'width 32': dict(SMALL, D=32),
    'width 48': dict(SMALL, D=48, M=1),
    'width 64': dict(SMALL, D=64, M=1),
    'width 71': dict(SMALL, D=71, M=1),
    'width 128': dict(SMALL, D=128, M=1, Q=3),
    'width 256, points 3': dict(SMALL, D=256, M=1, Q=2, P=3),
}

setup = functools.partial(setup_operator, 'ms_deform_attn')


@every_triton('shape', SHAPES)
def test_against_reference(shape, device):
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_device
def test_softmax_in_parts(monkeypatch, device):
    """Logits that a program reads a few at a time, of which some are -inf, and some far
    from 0."""
    monkeypatch.setattr(triton_impl, 'LOGITS', 128)
    shape = dict(SMALL, P=9, D=16, Q=3)
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    inputs[2][:, 0, :, 0] = float('-inf')
    inputs[2][:, 1] += 1000
    inputs[2][:, 2] -= 1000
    check_operator(triton, inputs)


@every_device
def test_offsets_beyond_32_bits(device):
    """Pixels lie 2^30 elements apart; memory that nobody writes to is not taken."""
    S, D, gap = 4, 4, 2**30
    triton, inputs = setup(
        'triton', **dict(SMALL, shapes=((2, 2),), M=1), device=device
    )
    memory = torch.empty(3 * gap + D, dtype=torch.float16, device=device)
    far = memory.as_strided((1, S, 1, D), (0, gap, 0, 1))
    far.copy_(inputs[0])
    near = far.contiguous()
    results = [run_with_grads(triton, [value, *inputs[1:]]) for value in (near, far)]
    assert torch.equal(results[0][0], results[1][0])
    for n, f in zip(results[0][1][1:3], results[1][1][1:3], strict=True):
        assert torch.equal(n, f)


@every_device
def test_in_order_by_parts(monkeypatch, device):
    """Bit by bit the same, however many images and heads are sorted at a time."""
    shape = dict(shapes=((2, 1),), Q=4, B=3, M=2, D=2, P=2)  # 8 points of a head
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    with deterministic():
        whole = run_with_grads(triton, inputs)
        for room in (1, 32):  # a head, two images
            monkeypatch.setattr(triton_impl, 'WORKSPACE', room)
            assert_equal(whole, run_with_grads(triton, inputs))


@every_device
def test_no_tensor_of_all_samples(monkeypatch, device):
    shape = dict(shapes=((3, 3), (2, 2)), Q=5, B=1, M=2, D=16, P=4)
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    flat = [side for level in shape['shapes'] for side in level]
    with LargestTensor() as largest:
        out = triton_impl.forward(*inputs, shapes=flat)
    assert largest.numel <= inputs[0].numel()
    samples = 5 * 2 * 2 * 4 * 16  # points, and the channels of each
    monkeypatch.setattr(triton_impl, 'WORKSPACE', 5 * 2 * 4)
    for in_order in (False, True):
        with deterministic(in_order), LargestTensor() as largest:
            triton_impl.backward(out, *inputs, shapes=flat)
        assert largest.numel <= inputs[0].numel() < samples / 2
