"""Structure-aware attention: arguments, checks and the operator."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from mmattn.errors import UserError

from ..common.checks import check_one_device, check_qkv, dtype_name
from ..common.exporting import is_exporting
from ..common.operator import Operator
from ..common.precision import compute_dtype, without_autocast
from . import cpp_impl, inspection, reference, torch_impl, triton_impl
from .decomposition import structure_aware_attention_decomposition
from .real_transforms import rfft_parts
from .spectrum import rfft_grid


def structure_aware_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_a: Tensor,
    w_b: Tensor,
    bias: Tensor,
    *,
    grid: Sequence[int] | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attend with kernels that are structural patterns, log-linear in N.

    With q and k normalized over the channels of a head, and `*` the circular
    convolution over the grid,

        p[k, i] = sum_c q[i, c] (k[:, c] * w_a[c, k])[i]
        out[i, v] = sum_k p[k, i] ((v[:, v] * w_b[k])[i] + bias[v, k]).

    From "Lightweight Structure-Aware Attention for Visual Understanding",
    https://arxiv.org/abs/2211.16289, equations 12 to 14. B batch, N tokens of a grid of
    one, two or three dimensions in row-major order, M heads, D head width, K patterns.

    Args:
        q, k, v: shape (B, N, M, D), float32, float16, bfloat16 or float64, of one
            dtype. Arithmetic and transforms are in float32, or in float64 for float64.
            Autocast changes neither arguments nor result.
        w_a: kernels of k, shape (D, K, *grid), shared by the heads. Alternatively their
            half-spectra `torch.fft.rfftn(w_a, dim=grid dimensions)`, complex, shape
            (D, K, *grid[:-1], grid[-1] // 2 + 1), which a caller may cache.
        w_b: kernels of v, shape (K, *grid), shared by heads and channels, or their
            half-spectra; real or complex as w_a.
        bias: shape (D, K), shared by the heads.
        grid: sides of the grid. Required with half-spectra, whose last side does not
            determine it. Defaults to the sides of the kernels.
        backend: 'triton', 'cpp', 'torch', 'reference', or None for the fastest one
            supports the call. It is 'reference' in forward mode and under
            `torch.func.grad`. Second derivatives are those of 'reference'.

    Returns:
        Shape (B, N, M, D), dtype as q.

    Raises:
        ValueError: shapes, dtypes or devices disagree, or `backend` does not support
            the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 14 * 14, 12, 16).unbind()
        >>> w_a, w_b = torch.randn(16, 8, 14, 14), torch.randn(8, 14, 14)
        >>> bias = torch.zeros(16, 8)
        >>> structure_aware_attention(q, k, v, w_a, w_b, bias).shape
        torch.Size([2, 196, 12, 16])
    """
    grid = _check(q, k, v, w_a, w_b, bias, grid)
    dtype = compute_dtype(q.dtype)
    with without_autocast(q):
        w_a, w_b = (_parts(w, dtype, grid) for w in (w_a, w_b))
        return OPERATOR(q, k, v, w_a, w_b, bias.to(dtype), backend=backend, grid=grid)


def _parts(w: Tensor, dtype: torch.dtype, grid: tuple[int, ...]) -> Tensor:
    """Return real and imaginary parts (..., *half, 2) of kernels or half-spectra."""
    if w.is_complex():
        # Not dtype.to_complex(), which PyTorch does not compile.
        half = w.to(torch.promote_types(dtype, torch.complex64))
    elif is_exporting():
        return rfft_parts(w.to(dtype), grid).movedim(-1 - len(grid), -1)
    else:
        half = rfft_grid(w.to(dtype), grid)
    return torch.view_as_real(half.resolve_conj())


def _check(q, k, v, w_a, w_b, bias, grid):
    """Return the grid as a tuple."""
    _, N, _, D = check_qkv(q, k, v)
    if w_a.is_complex() != w_b.is_complex():
        raise UserError(
            '`w_a` and `w_b` must both be kernels or both half-spectra, got '
            f'{dtype_name(w_a.dtype)} and {dtype_name(w_b.dtype)}'
        )
    if grid is None and w_a.is_complex():
        raise UserError('half-spectra require `grid`, got None')
    sides = tuple(w_b.shape[1:]) if grid is None else tuple(grid)
    if not 1 <= len(sides) <= 3 or prod(sides) != N:
        raise UserError(
            f'`grid` must have one to three sides and {N} tokens, got {sides}'
        )
    K = w_b.shape[0]
    stored = (*sides[:-1], sides[-1] // 2 + 1) if w_a.is_complex() else sides
    expected = ((D, K, *stored), (K, *stored), (D, K))
    got = tuple(tuple(x.shape) for x in (w_a, w_b, bias))
    if K == 0 or got != expected:
        raise UserError(
            f'`w_a`, `w_b` and `bias` must have shapes {expected} on the grid {sides}, '
            f'got {got}'
        )
    check_one_device(q, k, v, w_a, w_b, bias)
    return sides


def _outputs(q, k, v, w_a, w_b, bias, **settings):
    """Return an empty output and patterns p (B, M, K, N)."""
    B, N, M, _ = q.shape
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        bias.new_empty(B, M, bias.shape[1], N),
    )


def _example(device: str, dtype: torch.dtype) -> tuple[tuple, dict]:
    """Return the tensors and the settings of a small call."""
    qkv = (torch.randn(2, 35, 3, 8, device=device).to(dtype) for _ in range(3))
    weights = (
        torch.randn(shape, device=device, dtype=compute_dtype(dtype))
        for shape in ((8, 4, 7, 3, 2), (4, 7, 3, 2), (8, 4))
    )
    return (*qkv, *weights), dict(grid=(7, 5))


OPERATOR = Operator(
    'structure_aware_attention',
    reference.structure_aware_attention_reference,
    {'triton': triton_impl, 'cpp': cpp_impl, 'torch': torch_impl},
    tensors='Tensor q, Tensor k, Tensor v, Tensor w_a, Tensor w_b, Tensor bias',
    settings='SymInt[] grid',
    outputs=_outputs,
    example=_example,
    flops=inspection.FLOPS,
    attention=inspection.attention,
    saved=('patterns',),
    decomposition=structure_aware_attention_decomposition,
)
