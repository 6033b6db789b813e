"""Random inputs and calls of operators for tests and benchmarks.

Sizes have the operators' letters. `options` are dtype, device and seed, as in `Draw`. A
dtype that is None is float32, or float64 where the first tensors are in float64.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmattn import ops
from mmattn.ops.common.precision import compute_dtype

LEVELS = ((7, 5), (4, 3), (1, 1))


class Draw:
    """Return random tensors that depend on the seed, not on device and dtype."""

    def __init__(self, dtype=torch.float32, device='cpu', seed=0):
        self.dtype, self.device = dtype, device
        self.wide_dtype = compute_dtype(dtype)
        self.generator = torch.Generator().manual_seed(seed)

    def exact(self, *shape: int) -> Tensor:
        """Draw from the normal distribution, in float64 on the CPU."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def to(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor on the device, in the dtype of the draw or in another one."""
        return x.to(self.device, dtype or self.dtype)

    def __call__(self, *shape: int) -> Tensor:
        """Draw on the device and in the dtype of the draw."""
        return self.to(self.exact(*shape))


def make_landmark_inputs(
    *, B=2, N=63, M=3, D=8, L=9, E=None, **options
) -> list[Tensor | None]:
    """Return the nine tensors of `landmark_attention`, in order.

    q, k and v are views of one packed tensor, as a model's projection leaves them, and
    the landmarks are transposed views.
    Without E mixed heads, the last four are None.
    """
    draw = Draw(**options)
    attention = [
        *draw(B, N, 3, M, D).unbind(2),
        *(draw(B, M, L, D).transpose(1, 2) for _ in range(2)),
    ]
    if E is None:
        return [*attention, None, None, None, None]
    mixing = [
        draw.to(draw.exact(*shape) * shape[1] ** -0.5, draw.wide_dtype)
        for shape in ((E, M), (M, E), (E, M), (M, E))
    ]
    return [*attention, *mixing]


def make_structure_aware_inputs(
    *, grid=(7, 5), B=2, M=3, D=8, K=4, **options
) -> list[Tensor]:
    """Return the six tensors of `structure_aware_attention`; w_a and w_b are kernels.

    q, k and v are views of one packed tensor, as a model's projection leaves them.
    """
    draw = Draw(**options)
    N = prod(grid)
    qkv = draw(B, N, 3, M, D).unbind(2)
    shapes = ((D, K, *grid), N**-0.5), ((K, *grid), N**-0.5), ((D, K), 1.0)
    weights = [
        draw.to(draw.exact(*shape) * scale, draw.wide_dtype) for shape, scale in shapes
    ]
    return [*qkv, *weights]


def make_masked_inputs(
    *, grid=(7, 5), num_special=1, B=2, M=3, D=8, kernel_size=3, bias=False,
    alpha=False, **options,
) -> list[Tensor | None]:  # fmt: skip
    """Return q, k, v, bias and alpha of `masked_attention`.

    q, k and v are views of one packed tensor, as a model's projection leaves them.
    Bias, and alpha in (0, 1), are None unless asked for.
    """
    draw = Draw(**options)
    qkv = draw(B, num_special + prod(grid), 3, M, D).unbind(2)
    extras = (
        draw.exact(M, kernel_size, kernel_size) if bias else None,
        draw.exact(M).sigmoid() if alpha else None,
    )
    return [*qkv, *(x if x is None else draw.to(x, draw.wide_dtype) for x in extras)]


def make_neighborhood_inputs(
    *, grid=(9, 8), B=2, M=3, D=8, K=5, **options
) -> list[Tensor]:
    """Return q, k, v and rpb of `neighborhood_attention`.

    q, k and v are views of one packed tensor, as a model's projection leaves them. The
    biases are in float32, or in float64 where the others are.
    """
    draw = Draw(**options)
    qkv = draw(B, *grid, 3, M, D).unbind(3)
    rpb = draw.exact(M, 2 * K - 1, 2 * K - 1)
    return [*qkv, draw.to(rpb, draw.wide_dtype)]


def make_deformable_inputs(
    *, grid=(7, 5), K=11, B=2, M=4, D=8, G=2, table_size=None, **options
) -> list[Tensor]:
    """Return q, k, v, positions and table of `deformable_attention`.

    The queries are a view of a map (B, M * D, H, W). A few positions are outside
    [-1, 1]. Positions and table are in float32, or in float64 where the others are.
    """
    draw = Draw(**options)
    H, W = grid
    q = draw(B, M, D, H * W).permute(0, 3, 1, 2)
    k, v = draw(B, K, 2, M, D).unbind(2)
    positions = draw.exact(B, G, K, 2) / 2
    table = draw.exact(M, *(table_size or (2 * H - 1, 2 * W - 1)))
    return [q, k, v, *(draw.to(x, draw.wide_dtype) for x in (positions, table))]


def make_ms_deform_inputs(
    *, shapes=LEVELS, Q=13, B=2, M=3, D=8, P=2, fused=False,
    boxes=False, points_dtype=None, **options,
) -> list[Tensor | None]:  # fmt: skip
    """Return value, points, weights and reference of `ms_deform_attn`.

    These are locations, a few of them outside their map, weights and None. If `fused`,
    they are offsets, logits and reference points, or boxes. `points_dtype` is that of
    all but value.
    """
    draw = Draw(**options)
    L = len(shapes)
    value = draw(B, sum(H * W for H, W in shapes), M, D)
    points, weights = draw.exact(B, Q, M, L, P, 2), draw.exact(B, Q, M, L, P)
    reference = draw.exact(B, Q, L, 4 if boxes else 2).sigmoid()
    if not fused:
        points = 0.5 + 0.4 * points
        weights = weights.flatten(3).softmax(-1).view_as(weights)
        reference = None
    dtype = points_dtype or draw.wide_dtype
    others = points, weights, reference
    return [value, *(x if x is None else draw.to(x, dtype) for x in others)]


FORMS = {
    'locations': dict(),
    'offsets from points': dict(fused=True),
    'offsets in boxes': dict(fused=True, boxes=True),
}


class Signature(NamedTuple):
    """Describe how to call an operator.

    Args:
        attend: takes the tensors by position, settings and `backend`.
        make: returns the tensors for sizes, a dtype, a device and a seed.
        names: names of the tensors.
        sizes: defaults of the sizes that are settings, too.
        settings: defaults of the settings that are no sizes.
    """

    attend: Callable[..., Tensor]
    make: Callable[..., list[Tensor | None]]
    names: str
    sizes: dict[str, Any] = {}
    settings: dict[str, Any] = {}


def _masked(q, k, v, bias, alpha, masked_heads=None, **settings):
    bias, alpha = (None if x is None else x[:masked_heads] for x in (bias, alpha))
    settings['masked_heads'] = masked_heads
    return ops.masked_attention(q, k, v, bias=bias, alpha=alpha, **settings)


def _deformable(q, k, v, positions, table, grid, **settings):
    return ops.deformable_attention(q, k, v, grid, positions, table, **settings)


def _ms_deform(value, points, weights, reference, shapes, backend=None):
    if reference is None:
        return ops.ms_deform_attn(value, shapes, points, weights, backend=backend)
    return ops.fused_ms_deform_attn(
        value, shapes, reference, points, weights, backend=backend
    )


SIGNATURES = {
    'landmark_attention': Signature(
        ops.landmark_attention,
        make_landmark_inputs,
        'q k v q_landmarks k_landmarks w1_q w2_q w1_k w2_k',
    ),
    'masked_attention': Signature(
        _masked,
        make_masked_inputs,
        'q k v bias alpha',
        dict(grid=(7, 5), kernel_size=3, num_special=1),
        dict(mask_fill='zero', masked_heads=None),
    ),
    'structure_aware_attention': Signature(
        ops.structure_aware_attention,
        make_structure_aware_inputs,
        'q k v w_a w_b bias',
        dict(grid=(7, 5)),
    ),
    'deformable_attention': Signature(
        _deformable,
        make_deformable_inputs,
        'q k v positions table',
        dict(grid=(7, 5)),
        dict(align_corners=True),
    ),
    'ms_deform_attn': Signature(
        _ms_deform,
        make_ms_deform_inputs,
        'value points weights reference',
        dict(shapes=LEVELS),
    ),
    'neighborhood_attention': Signature(
        ops.neighborhood_attention,
        make_neighborhood_inputs,
        'q k v rpb',
    ),
}


def names_of(name: str) -> list[str]:
    """Return the names of an operator's tensors."""
    return SIGNATURES[name].names.split()


def split(name: str, **shape) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a call, and the sizes of its tensors."""
    signature = SIGNATURES[name]
    settings = {key: shape.pop(key, x) for key, x in signature.settings.items()}
    sizes = signature.sizes | shape
    return settings | {key: sizes[key] for key in signature.sizes}, sizes


def setup(name: str, backend: str | None = None, **shape):
    """Return an operator as a function of its tensors, and the tensors."""
    settings, sizes = split(name, **shape)
    signature = SIGNATURES[name]
    function = partial(signature.attend, backend=backend, **settings)
    return function, signature.make(**sizes)
