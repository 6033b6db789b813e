"""FLOP rules of our operators, and of the kernels that PyTorch has no rule for.

Importing this module registers them with PyTorch's `FlopCounterMode`, so our operators
count the same on every backend. A multiply-accumulate is two FLOPs, as it is for
PyTorch's own rules.

A Fourier transform of N values counts N log2 N multiply-accumulates, whether the values
are real or complex. The transforms of one call are rounded together.

A hard-masked head counts the pairs inside its mask. `DENSE_RULES` count it as plain
attention, with all N x N pairs. They are not registered, and `Complexity` keeps both
counts.

A rule takes the shapes of an operator's tensors, and its other arguments.
"""

import math
from collections.abc import Callable
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

import mmattn.ops  # noqa: F401  defines the operators under torch.ops.mmattn

aten, ours = torch.ops.aten, torch.ops.mmattn
# Not registered with PyTorch, since some papers count norms and most do not.
NORM_RULES = {aten.native_layer_norm: lambda x, *args, **kwargs: 2 * 5 * prod(x)}
TRANSFORMS = {
    ours.structure_aware_attention,
    ours.structure_aware_attention_backward,
    aten._fft_r2c,
    aten._fft_c2c,
    aten._fft_c2r,
}
# Interpolations multiply numbers, not matrices.
SAMPLINGS = {ours.ms_deform_attn, ours.ms_deform_attn_backward}


def backward_rule(forward: Callable, num_saved: int) -> Callable:
    """Return the rule of a backward: two products for each one of the forward.

    Products that the backward computes again do not count.

    Args:
        forward: the forward's rule.
        num_saved: tensors between the gradient of the output and the forward's
            arguments.
    """

    def rule(grad, *args, **kwargs) -> int:
        return 2 * forward(*args[num_saved:], **kwargs)

    return rule


def landmark_attention_flops(
    q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k, *args, **kwargs
) -> int:
    """Count two maps of N x L for M heads: scores, product with v, two mixings each."""
    B, N, M, D = q
    L = q_landmarks[1]
    mixing = sum(prod(w) for w in (w1_q, w2_q, w1_k, w2_k) if w is not None)
    return 2 * B * N * L * (4 * M * D + mixing)


def _fft_flops(shape, sides) -> int:
    """Count the transforms over `sides` of everything that `shape` holds."""
    return 2 * round(prod(shape) * math.log2(prod(sides)))


def _fft_of_values(x, dim, *args, **kwargs) -> int:
    return _fft_flops(x, [x[i] for i in dim])


def _fft_to_values(spectrum, dim, *args, out_shape=None, **kwargs) -> int:
    return _fft_flops(out_shape, [out_shape[i] for i in dim])


def _structure_aware_transforms(q, bias, grid) -> int:
    """Count one transform of k and of v, and K back for the products of each."""
    spectra, (_, K) = prod(q), bias
    return 2 * (_fft_flops([spectra], grid) + _fft_flops([spectra * K], grid))


def _structure_aware_contractions(q, bias) -> int:
    """Count q times K convolved keys, and the patterns times K convolved values."""
    return 2 * 2 * prod(q) * bias[1]


@register_flop_formula(ours.structure_aware_attention)
def _(q, k, v, w_a, w_b, bias, grid, *args, **kwargs) -> int:
    """Leave out the products of spectra, as the paper's tables do."""
    return _structure_aware_transforms(q, bias, grid) + _structure_aware_contractions(
        q, bias
    )


@register_flop_formula(ours.structure_aware_attention_backward)
def _(grad, patterns, q, k, v, w_a, w_b, bias, grid, *args, **kwargs) -> int:
    """Count a transform for each one of the forward, and twice its contractions."""
    contractions = _structure_aware_contractions(q, bias)
    return _structure_aware_transforms(q, bias, grid) + 2 * contractions


def _all_pairs(q, grid, kernel_size, num_special) -> int:
    return q[1] ** 2


def _pairs_inside_mask(q, grid, kernel_size, num_special) -> int:
    """Count a whole window for each patch, also where a border clips it.

    A window is not larger than the map. Special tokens see all tokens, and all tokens
    see them.
    """
    window = prod(min(kernel_size, side) for side in grid)
    return prod(grid) * (window + num_special) + num_special * q[1]


def _masked_attention_rules(pairs: Callable) -> dict[Any, Callable]:
    """Return the rules of the operator and its backward.

    A score and a product with v count for each pair. A soft mask lets all pairs in. The
    correction of its neighbors does not count.

    Args:
        pairs: returns the pairs of a query and a key that a hard-masked head counts.
    """

    def forward(q, k, v, bias, alpha, grid, kernel_size, num_special, *args, **kwargs):
        B, _, M, D = q
        count = pairs if alpha is None else _all_pairs
        return 2 * 2 * B * M * D * count(q, grid, kernel_size, num_special)

    return {
        ours.masked_attention: forward,
        ours.masked_attention_backward: backward_rule(forward, num_saved=2),
    }


DENSE_RULES = _masked_attention_rules(_all_pairs)


def neighborhood_attention_flops(q, k, v, rpb, *args, **kwargs) -> int:
    """Count a score and a product with v for each key of each query's window.

    Tiles multiply more keys than that, which does not count.
    """
    K = (rpb[1] + 1) // 2
    return 2 * 2 * prod(q) * K**2


def deformable_attention_flops(q, k, *args, **kwargs) -> int:
    """Count a score and a product with v for each pair; the bias counts nothing."""
    return 2 * 2 * prod(q) * k[1]


BILINEAR_PRODUCTS = 5


def ms_deform_attn_flops(value, points, *args, **kwargs) -> int:
    """Count five products for each channel of each point: four pixels, one weight.

    Appendix A.1 of Deformable DETR, https://arxiv.org/abs/2010.04159, counts 5 N_q K C
    for the sampling. Locations and the softmax count nothing.
    """
    *_, D = value
    if (
        points[3] * points[4] == 1
    ):  # one place of one map: `grid_sample`, which has none
        return 0
    return 2 * BILINEAR_PRODUCTS * prod(points[:-1]) * D


def _sdpa_flops(q, k, v, *args, **kwargs) -> int:
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _register(name: str, rule: Callable, num_saved: int):
    """Register the rules of one of our operators and of its backward."""
    register_flop_formula(getattr(ours, name))(rule)
    backward = getattr(ours, f'{name}_backward')
    register_flop_formula(backward)(backward_rule(rule, num_saved))


for _operator, _rule in _masked_attention_rules(_pairs_inside_mask).items():
    register_flop_formula(_operator)(_rule)
_register('landmark_attention', landmark_attention_flops, num_saved=2)
_register('neighborhood_attention', neighborhood_attention_flops, num_saved=2)
_register('deformable_attention', deformable_attention_flops, num_saved=2)
_register('ms_deform_attn', ms_deform_attn_flops, num_saved=0)

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

if find_spec('torchvision') is not None:
    import torchvision  # noqa: F401  defines the operators under torch.ops.torchvision

    @register_flop_formula(torch.ops.torchvision.deform_conv2d)
    def _(x, weight, *args, out_shape=None, **kwargs) -> int:
        return 2 * prod(out_shape) * prod(weight[1:])
