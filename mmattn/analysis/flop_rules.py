"""FLOP rules of our operators, and of the kernels that PyTorch has no rule for.

Importing this module registers them with PyTorch's `FlopCounterMode`, so that our
operators count the same on every backend. They are two for each multiply-accumulate.

A Fourier transform of N values counts N log2 N multiply-accumulates, whether they are
real or complex, and those of one call are rounded together to a whole number.

A hard-masked head counts the pairs inside its mask. `DENSE_RULES` count it as plain
attention, all N x N pairs; they are not registered, and `Complexity` has both.
"""

import math
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torchvision  # noqa: F401  defines the operators under torch.ops.torchvision
from torch.utils.flop_counter import flop_registry, register_flop_formula

import mmattn.ops  # noqa: F401  defines the operators under torch.ops.mmattn

aten = torch.ops.aten
# Not registered with PyTorch: some papers count norms, most do not.
NORM_RULES = {aten.native_layer_norm: lambda x, *args, **kwargs: 2 * 5 * prod(x)}
TRANSFORMS = {
    torch.ops.mmattn.structure_aware_attention,
    torch.ops.mmattn.structure_aware_attention_backward,
    aten._fft_r2c,
    aten._fft_c2c,
    aten._fft_c2r,
}
# Interpolations: products of numbers, not of matrices.
SAMPLINGS = {
    torch.ops.mmattn.ms_deform_attn,
    torch.ops.mmattn.ms_deform_attn_backward,
}


def _landmark_attention_flops(
    q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Two maps of N x L for M heads: scores, product with v, and two mixings each."""
    B, N, M, D = q
    L = q_landmarks[1]
    mixing = sum(prod(w) for w in (w1_q, w2_q, w1_k, w2_k) if w is not None)
    return 2 * B * N * L * (4 * M * D + mixing)


@register_flop_formula(torch.ops.mmattn.landmark_attention)
def _(*args, **kwargs) -> int:
    return _landmark_attention_flops(*args[:9])


@register_flop_formula(torch.ops.mmattn.landmark_attention_backward)
def _(grad, context, statistics, *args, **kwargs) -> int:
    """Two products for each of the forward's; recomputed ones are not counted."""
    return 2 * _landmark_attention_flops(*args[:9])


def _fft_flops(shape, sides) -> int:
    """Of the transforms over `sides` of all that `shape` holds."""
    return 2 * round(prod(shape) * math.log2(prod(sides)))


def _fft_of_values(x, dim, *args, **kwargs) -> int:
    return _fft_flops(x, [x[i] for i in dim])


def _fft_to_values(spectrum, dim, *args, out_shape=None, **kwargs) -> int:
    return _fft_flops(out_shape, [out_shape[i] for i in dim])


def _structure_aware_transforms(q, bias, grid) -> int:
    """One of k and v, and K back of the products of each."""
    spectra, (_, K) = prod(q), bias
    return 2 * (_fft_flops([spectra], grid) + _fft_flops([spectra * K], grid))


def _structure_aware_contractions(q, bias) -> int:
    """Of q with K convolved keys, and of the patterns with K convolved values."""
    return 2 * 2 * prod(q) * bias[1]


@register_flop_formula(torch.ops.mmattn.structure_aware_attention)
def _(q, k, v, w_a, w_b, bias, grid, *args, **kwargs) -> int:
    """The products of spectra count nothing: the paper's tables leave them out."""
    return _structure_aware_transforms(q, bias, grid) + _structure_aware_contractions(
        q, bias
    )


@register_flop_formula(torch.ops.mmattn.structure_aware_attention_backward)
def _(grad, patterns, q, k, v, w_a, w_b, bias, grid, *args, **kwargs) -> int:
    """A transform for each of the forward's and two products for each contraction.

    What is recomputed is not counted.
    """
    contractions = _structure_aware_contractions(q, bias)
    return _structure_aware_transforms(q, bias, grid) + 2 * contractions


def _all_pairs(q, grid, kernel_size, num_special) -> int:
    return q[1] ** 2


def _pairs_inside_mask(q, grid, kernel_size, num_special) -> int:
    """Of patches R x R and the special tokens, as if no border clipped a window.

    Special tokens see all. A window is not larger than the map.
    """
    window = prod(min(kernel_size, side) for side in grid)
    return prod(grid) * (window + num_special) + num_special * q[1]


def _masked_attention_flops(pairs: Callable, q, alpha, *stencil) -> int:
    """A score and a product with v for each pair; a soft mask lets all pairs in."""
    B, _, M, D = q
    pairs = pairs if alpha is None else _all_pairs
    return 2 * 2 * B * M * D * pairs(q, *stencil)


def _masked_attention_rules(pairs: Callable) -> dict[Any, Callable]:
    """Of the operator and of its backward, with `pairs` of query and key per head.

    The backward has two products for each of the forward's; recomputed ones are not
    counted, nor is what a soft mask's neighbors are corrected by.
    """

    def forward(q, k, v, bias, alpha, grid, kernel_size, num_special, *args, **kwargs):
        return _masked_attention_flops(pairs, q, alpha, grid, kernel_size, num_special)

    def backward(grad, out, lse, *args, **kwargs):
        return 2 * forward(*args)

    return {
        torch.ops.mmattn.masked_attention: forward,
        torch.ops.mmattn.masked_attention_backward: backward,
    }


DENSE_RULES = _masked_attention_rules(_all_pairs)
for _operator, _rule in _masked_attention_rules(_pairs_inside_mask).items():
    register_flop_formula(_operator)(_rule)


@register_flop_formula(torch.ops.mmattn.deformable_attention_v2)
def _deformable_attention_flops(q, k, *args, **kwargs) -> int:
    """A score and a product with v for each pair; reading the bias counts nothing."""
    return 2 * 2 * prod(q) * k[1]


@register_flop_formula(torch.ops.mmattn.deformable_attention_v2_backward)
def _(grad, out, lse, *args, **kwargs) -> int:
    """Two products for each of the forward's; recomputed ones are not counted."""
    return 2 * _deformable_attention_flops(*args)


BILINEAR_PRODUCTS = 5


@register_flop_formula(torch.ops.mmattn.ms_deform_attn)
def _ms_deform_attn_flops(value, points, *args, **kwargs) -> int:
    """Five products for each channel of each point: four pixels and their weight.

    As appendix A.1 of Deformable DETR, https://arxiv.org/abs/2010.04159, counts what is
    neither offsets, weights nor projections: 5 N_q K C. Locations and the softmax count
    nothing.
    """
    *_, D = value
    return 2 * BILINEAR_PRODUCTS * prod(points[:-1]) * D


@register_flop_formula(torch.ops.mmattn.ms_deform_attn_backward)
def _(grad, *args, **kwargs) -> int:
    """Two products for each of the forward's; recomputed ones are not counted."""
    return 2 * _ms_deform_attn_flops(*args)


@register_flop_formula(torch.ops.torchvision.deform_conv2d)
def _(x, weight, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(out_shape) * prod(weight[1:])


def _sdpa_flops(q, k, v, *args, **kwargs) -> int:
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


for _name, _rule in {
    '_fft_c2c': _fft_of_values,
    '_fft_c2r': _fft_to_values,
    '_fft_r2c': _fft_of_values,
    '_scaled_dot_product_flash_attention_for_cpu': _sdpa_flops,
    '_scaled_dot_product_fused_attention_overrideable': _sdpa_flops,
    '_scaled_dot_product_attention_math_for_mps': _sdpa_flops,
}.items():
    if hasattr(aten, _name) and getattr(aten, _name) not in flop_registry:
        register_flop_formula(getattr(aten, _name))(_rule)
