"""FLOP rules of our operators, and of the kernels that PyTorch has no rule for.

Importing this module registers them with PyTorch's `FlopCounterMode`, so our operators
count the same on every backend. Each `Operator` has its own rules.

`DENSE_RULES` count masked attention as plain attention. They are not registered, and
`Complexity` keeps both counts.
"""

from collections.abc import Callable
from importlib.util import find_spec
from math import prod

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

import mmattn.ops  # noqa: F401  fills OPERATORS
from mmattn.ops.common import extension
from mmattn.ops.common.operator import OPERATORS, Operator
from mmattn.ops.structure_aware_attention.inspection import fft_flops

aten = torch.ops.aten
# Not registered with PyTorch, since some papers count norms and most do not.
NORM_RULES = {aten.native_layer_norm: lambda x, *args, **kwargs: 2 * 5 * prod(x)}


def _operators_of(kind: str) -> set:
    """Return our operators, and their backwards, that count as `kind`."""
    found = [each for each in OPERATORS.values() if each.flops.kind == kind]
    return {part for each in found for part in (each.forward, each.backward)}


TRANSFORMS = _operators_of('transforms')
TRANSFORMS |= {aten._fft_r2c, aten._fft_c2c, aten._fft_c2r}
SAMPLINGS = _operators_of('samplings')


def _rules(operator: Operator, forward: Callable, backward: Callable | None) -> dict:
    """Return the rules of an operator and of its backward.

    Without a rule of its own, a backward counts two products for each one of the
    forward. Products that it computes again do not count.
    """

    def twice(grad, *args, **kwargs) -> int:
        return 2 * forward(*args[operator.num_saved :], **kwargs)

    return {operator.forward: forward, operator.backward: backward or twice}


DENSE_RULES = {
    part: rule
    for operator in OPERATORS.values()
    if operator.flops.dense is not None
    for part, rule in _rules(operator, operator.flops.dense, None).items()
}


def _fft_of_values(x, dim, *args, **kwargs) -> int:
    return fft_flops(x, [x[i] for i in dim])


def _fft_to_values(spectrum, dim, *args, out_shape=None, **kwargs) -> int:
    return fft_flops(out_shape, [out_shape[i] for i in dim])


def _sdpa_flops(q, k, v, *args, **kwargs) -> int:
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


for _operator in OPERATORS.values():
    _flops = _operator.flops
    for _part, _rule in _rules(_operator, _flops.forward, _flops.backward).items():
        register_flop_formula(_part)(_rule)

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

if extension.UNAVAILABLE is None:

    @register_flop_formula(torch.ops.mmattn_extension.depthwise_weight_gradient)
    def _(x, grad, stride, padding, sums, *args, **kwargs) -> int:
        return 2 * prod(grad) * (sums[0] - 1)  # the last sum is the bias's


if find_spec('torchvision') is not None:
    import torchvision  # noqa: F401  defines the operators under torch.ops.torchvision

    @register_flop_formula(torch.ops.torchvision.deform_conv2d)
    def _(x, weight, *args, out_shape=None, **kwargs) -> int:
        return 2 * prod(out_shape) * prod(weight[1:])
