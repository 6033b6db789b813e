"""Tolerances, inputs and gradients that operator tests and benchmarks share."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


class Tolerance(NamedTuple):
    """Bounds on an error, relative to the expected tensor's RMS and largest value."""

    rms: float
    maximum: float
    absolute: float  # added to both: rounding noise where the exact answer is 0


TOLERANCES = {
    torch.float64: Tolerance(1e-12, 1e-11, 1e-13),
    torch.float32: Tolerance(1e-5, 5e-5, 2e-6),
    torch.float16: Tolerance(1e-3, 3e-3, 2e-4),
    torch.bfloat16: Tolerance(6e-3, 2e-2, 1e-3),
}


def assert_close(
    name: str, expected: Tensor, actual: Tensor, dtype: torch.dtype | None = None
):
    """Asserts that `actual` has the shape of `expected`, is finite and near to it.

    Args:
        name: of the quantity, for the message.
        expected: of any dtype; compared in float64.
        actual: the tensor under test.
        dtype: row of `TOLERANCES` to use, actual's dtype if None. Give the dtype of the
            operator's inputs where a result of higher precision depends on them.
    """
    assert actual.shape == expected.shape, f'{name}: {actual.shape}, {expected.shape}'
    if actual.numel() == 0:
        return
    expected, tolerance = expected.detach().double(), TOLERANCES[dtype or actual.dtype]
    actual = actual.detach().to(expected)
    assert actual.isfinite().all(), f'{name}: not finite'
    error = actual - expected
    rms, rms_error = (x.square().mean().sqrt().item() for x in (expected, error))
    high, high_error = (x.abs().max().item() for x in (expected, error))
    allowed = tolerance.rms * rms + tolerance.absolute
    assert rms_error <= allowed, f'{name}: RMS error {rms_error:.2e} > {allowed:.2e}'
    allowed = tolerance.maximum * high + tolerance.absolute
    assert high_error <= allowed, f'{name}: error {high_error:.2e} > {allowed:.2e}'


def make_landmark_inputs(
    *,
    B: int = 2,
    N: int = 63,
    M: int = 3,
    D: int = 8,
    L: int = 9,
    E: int | None = None,
    dtype: torch.dtype = torch.float32,
    mixing_dtype: torch.dtype | None = None,
    device: str = 'cpu',
    seed: int = 0,
) -> list[Tensor | None]:
    """The nine tensors of `landmark_attention`, in order.

    q, k and v are views of one packed tensor, as a model's projection leaves them, and
    the landmarks are transposed views. E is the number of mixed heads, None for no
    mixing; the mixing weights are in float32 (float64 in float64) if not told.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, dtype=dtype):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(device, dtype)

    attention = [
        *draw(B, N, 3, M, D).unbind(2),
        *(draw(B, M, L, D).transpose(1, 2) for _ in range(2)),
    ]
    if E is None:
        return [*attention, None, None, None, None]
    if mixing_dtype is None:
        mixing_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    mixing = [
        (draw(*shape, dtype=torch.float64) * shape[1] ** -0.5).to(mixing_dtype)
        for shape in ((E, M), (M, E), (E, M), (M, E))
    ]
    return [*attention, *mixing]


def make_structure_aware_inputs(
    *,
    grid: tuple[int, ...] = (7, 5),
    B: int = 2,
    M: int = 3,
    D: int = 8,
    K: int = 4,
    dtype: torch.dtype = torch.float32,
    weight_dtype: torch.dtype | None = None,
    device: str = 'cpu',
    seed: int = 0,
) -> list[Tensor]:
    """The six tensors of `structure_aware_attention`, in order; w_a, w_b are kernels.

    q, k and v are views of one packed tensor, as a model's projection leaves them. The
    weights are in float32 (float64 in float64) if not told.
    """
    generator = torch.Generator().manual_seed(seed)
    N = prod(grid)
    if weight_dtype is None:
        weight_dtype = torch.promote_types(dtype, torch.float32)

    def draw(*shape, dtype):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(device, dtype)

    qkv = draw(B, N, 3, M, D, dtype=dtype).unbind(2)
    w_a, w_b, bias = (
        (draw(*shape, dtype=torch.float64) * scale).to(weight_dtype)
        for shape, scale in (
            ((D, K, *grid), N**-0.5),
            ((K, *grid), N**-0.5),
            ((D, K), 1.0),
        )
    )
    return [*qkv, w_a, w_b, bias]


def make_masked_inputs(
    *,
    grid: tuple[int, int] = (7, 5),
    num_special: int = 1,
    B: int = 2,
    M: int = 3,
    D: int = 8,
    kernel_size: int = 3,
    bias: bool = False,
    alpha: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = 'cpu',
    seed: int = 0,
) -> list[Tensor | None]:
    """q, k, v, bias and alpha of `masked_attention`, the last two None if not wanted.

    q, k and v are views of one packed tensor, as a model's projection leaves them; bias
    and alpha, in (0, 1), are in float32 (float64 in float64).
    """
    generator = torch.Generator().manual_seed(seed)
    N = num_special + prod(grid)
    extra_dtype = torch.promote_types(dtype, torch.float32)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    qkv = draw(B, N, 3, M, D).to(device, dtype).unbind(2)
    extras = (
        draw(M, kernel_size, kernel_size).to(device, extra_dtype) if bias else None,
        draw(M).sigmoid().to(device, extra_dtype) if alpha else None,
    )
    return [*qkv, *extras]


def make_neighborhood_inputs(
    *,
    grid: tuple[int, int] = (9, 8),
    B: int = 2,
    M: int = 3,
    D: int = 8,
    K: int = 5,
    dtype: torch.dtype = torch.float32,
    device: str = 'cpu',
    seed: int = 0,
) -> list[Tensor]:
    """Return q, k, v and rpb of `neighborhood_attention`.

    q, k and v are views of one packed tensor, as a model's projection leaves them. The
    biases are in float32 (float64 in float64).
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    qkv = draw(B, *grid, 3, M, D).to(device, dtype).unbind(3)
    rpb = draw(M, 2 * K - 1, 2 * K - 1)
    return [*qkv, rpb.to(device, torch.promote_types(dtype, torch.float32))]


def make_deformable_v2_inputs(
    *,
    grid: tuple[int, int] = (7, 5),
    K: int = 11,
    B: int = 2,
    M: int = 4,
    D: int = 8,
    G: int = 2,
    table_size: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = 'cpu',
    seed: int = 0,
) -> list[Tensor]:
    """q, k, v, positions and table of `deformable_attention_v2`.

    The queries are a view of a map (B, M * D, H, W). Positions, a few of which are
    outside [-1, 1], and the table are in float32 (float64 in float64); without
    `table_size` the table is made for the grid.
    """
    generator = torch.Generator().manual_seed(seed)
    H, W = grid
    extra_dtype = torch.promote_types(dtype, torch.float32)

    def draw(*shape, dtype=dtype):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(device, dtype)

    q = draw(B, M, D, H * W).permute(0, 3, 1, 2)
    k, v = draw(B, K, 2, M, D).unbind(2)
    positions = draw(B, G, K, 2, dtype=torch.float64) / 2
    table = draw(M, *(table_size or (2 * H - 1, 2 * W - 1)), dtype=extra_dtype)
    return [q, k, v, positions.to(extra_dtype), table]


def make_ms_deform_inputs(
    *,
    shapes: Sequence[tuple[int, int]] = ((7, 5), (4, 3), (1, 1)),
    Q: int = 13,
    B: int = 2,
    M: int = 3,
    D: int = 8,
    P: int = 2,
    fused: bool = False,
    boxes: bool = False,
    dtype: torch.dtype = torch.float32,
    points_dtype: torch.dtype | None = None,
    device: str = 'cpu',
    seed: int = 0,
) -> list[Tensor | None]:
    """The tensors of `ms_deform_attn`: value, points, weights and reference.

    Without `fused`: locations, a few of them outside their map, weights, and None. With
    it: offsets, logits, and reference points, or boxes on request. All but value are in
    `points_dtype`, float32 (float64 in float64) if not told.
    """
    generator = torch.Generator().manual_seed(seed)
    L = len(shapes)
    if points_dtype is None:
        points_dtype = torch.promote_types(dtype, torch.float32)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    value = draw(B, sum(H * W for H, W in shapes), M, D).to(device, dtype)
    points, weights = draw(B, Q, M, L, P, 2), draw(B, Q, M, L, P)
    reference = draw(B, Q, L, 4 if boxes else 2).sigmoid()
    if not fused:
        points = 0.5 + 0.4 * points
        weights = weights.flatten(3).softmax(-1).view_as(weights)
        reference = None
    return [
        value,
        *(
            x if x is None else x.to(device, points_dtype)
            for x in (points, weights, reference)
        ),
    ]


def with_grad(
    tensors: Sequence[Tensor | None], requires_grad: bool = True
) -> tuple[Tensor | None, ...]:
    """Return tensors as leaves of autograd's graph; None stays None."""
    return tuple(
        None if x is None else x.detach().requires_grad_(requires_grad) for x in tensors
    )


def run_with_grads(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    requires_grad: Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Result of `function(*inputs)` and its gradients for a fixed random cotangent.

    Args:
        function: takes the inputs by position, returns one tensor.
        inputs: tensors or None; they are not changed.
        requires_grad: which of them get gradients, all if None.
        dtype: what inputs are cast to first, unchanged if None.
    """
    wanted, storage = requires_grad or [True] * len(inputs), inputs[0].dtype
    inputs = [
        None
        if x is None
        else (x.detach() if dtype is None else x.detach().to(dtype)).requires_grad_(
            want
        )
        for x, want in zip(inputs, wanted, strict=True)
    ]
    out = function(*inputs)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    cotangent = cotangent.to(storage).to(out)  # one rounding, whatever dtype computes
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    grads = iter(torch.autograd.grad(out, leaves, cotangent))
    return out.detach(), [
        next(grads) if x is not None and x.requires_grad else None for x in inputs
    ]
