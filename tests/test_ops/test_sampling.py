"""Bilinear samples by gathers, against `grid_sample`, up to second derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from mmattn.ops.common.sampling import gather_samples, sample_maps

every_alignment = pytest.mark.parametrize('align_corners', [False, True])


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def on_and_off_the_map(side_x, side_y, align_corners):
    """Places between pixels, on their centers and edges, around the map and far away.

    Sides are such that centers are exact.
    """
    x, y = (
        torch.tensor([-1e30, -3, -1, *range(side), side, 1e30], dtype=torch.float64)
        for side in (side_x, side_y)
    )
    pixels = torch.cartesian_prod(x, y).view(len(x), len(y), 2)
    pixels = torch.cat([pixels, pixels + 0.5, pixels + 0.3], 1)
    sides = torch.tensor([side_x, side_y])
    if align_corners:
        places = pixels / (sides - 1) * 2 - 1
    else:
        places = (pixels * 2 + 1) / sides - 1
    return places.expand(2, *places.shape).clone()


def maps_and_places(align_corners):
    sides = (5, 3) if align_corners else (4, 2)
    return random(2, 3, *sides[::-1]), on_and_off_the_map(*sides, align_corners)


@every_alignment
def test_values_and_gradients_everywhere(align_corners):
    leaves = [x.requires_grad_() for x in maps_and_places(align_corners)]
    results = []
    for sample in (gather_samples, F.grid_sample):
        out = sample(*leaves, align_corners=align_corners)
        cotangent = random(*out.shape, seed=1)
        results.append((out, *torch.autograd.grad(out, leaves, cotangent)))
    torch.testing.assert_close(*results)


@every_alignment
def test_tangents_are_the_transpose_of_gradients_everywhere(align_corners):
    inputs = maps_and_places(align_corners)
    tangents = tuple(random(*x.shape, seed=1) for x in inputs)

    def sample(*inputs):
        return sample_maps(*inputs, align_corners=align_corners)

    out, pull = torch.func.vjp(sample, *inputs)
    _, tangent = torch.func.jvp(sample, inputs, tangents)
    cotangent = random(*out.shape, seed=2)
    backward = sum(
        (g * t).sum() for g, t in zip(pull(cotangent), tangents, strict=True)
    )
    torch.testing.assert_close((cotangent * tangent).sum(), backward)


@every_alignment
def test_derivatives_of_both_orders_and_modes(align_corners):
    inputs = [random(1, 2, 3, 4).requires_grad_(), random(1, 2, 3, 2).requires_grad_()]

    def sample(*inputs):
        return gather_samples(*inputs, align_corners=align_corners)

    assert gradcheck(sample, inputs, check_forward_ad=True)
    assert gradgradcheck(sample, inputs, check_fwd_over_rev=True)


def test_other_calls_take_grid_sample(monkeypatch):
    """It is the faster one, and exported as one operator."""
    calls = []
    monkeypatch.setattr(F, 'grid_sample', lambda *x, **y: calls.append(x) or x[0])
    inputs = random(1, 1, 2, 2), random(1, 2, 2, 2)
    sample_maps(*inputs, align_corners=True)
    with forward_ad.dual_level():
        sample_maps(*inputs, align_corners=True)
        assert len(calls) == 2
        dual = forward_ad.make_dual(inputs[1], inputs[1])
        sample_maps(inputs[0], dual, align_corners=True)
    assert len(calls) == 2
