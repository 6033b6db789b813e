"""Masked attention: arguments, checks and the operator."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from mmattn.errors import UserError, check_choice

from ..common.biased_attention import biased_attention
from ..common.checks import check_one_device, check_qkv, check_shape
from ..common.derivatives import needs_reference
from ..common.exporting import copied
from ..common.operator import REFERENCE, Operator, out_and_statistics
from ..common.precision import cast_under_autocast, without_autocast
from . import cpp_impl, inspection, reference, torch_impl, triton_impl
from .decomposition import masked_attention_decomposition

MASK_FILLS = ('zero', 'neg_inf')


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Sequence[int],
    *,
    kernel_size: int = 3,
    num_special: int = 0,
    masked_heads: int | Sequence[int] | None = None,
    bias: Tensor | None = None,
    global_bias: Tensor | None = None,
    alpha: Tensor | None = None,
    mask_fill: str = 'zero',
    backend: str | None = None,
) -> Tensor:
    """Attend with masked heads, which prefer their neighbors, and global heads.

    A masked head multiplies its scores by an R x R neighborhood mask before the
    softmax, `out = softmax(mask * (q k^T / sqrt(D) + bias)) v`. Tokens outside the mask
    keep the weight e^0, and the head is linear in N. From "MaiT: Leverage
    Attention Masks for More Efficient Image Transformers",
    https://arxiv.org/abs/2207.03006, equation 2. A soft mask has `alpha` in place of
    its zeros (section 4.3) and is quadratic. B batch, N = num_special + H * W tokens,
    the special ones first, the patches in row-major order, M heads, D head width, R
    width of the mask.

    Args:
        q, k, v: shape (B, N, M, D), float32, float16, bfloat16 or float64, of one
            dtype. Scores and softmax are in float32, or in float64 for float64.
        grid: H and W of the patches.
        kernel_size: width R of the mask, odd; clipped at the borders.
        num_special: number of tokens, such as a class token, that attend to all and
            that all attend to.
        masked_heads: number of the lowest heads that are masked, or their indices. None
            masks all heads. The others are global and quadratic.
        bias: shape (masked heads, R, R), added to scores between patches inside the
            mask: `bias[h, R // 2 + y_k - y_q, R // 2 + x_k - x_q]` for the query at
            (y_q, x_q) and the key at (y_k, x_k). Only hard masks support it.
        global_bias: shape (global heads, N, N), added to the global heads' scores.
        alpha: shape (masked heads,), in [0, 1], the factor of scores outside the mask.
            None is a hard mask. 1 is plain attention.
        mask_fill: 'zero' as in the paper, or 'neg_inf' to give tokens outside the mask
            no weight, which is neighborhood attention. Only hard masks support the
            latter.
        backend: 'triton', 'cpp', 'torch', 'reference', or None for the fastest one that
            supports the call. It computes the masked heads; global heads go through
            PyTorch's `scaled_dot_product_attention`. None is 'reference' in forward
            mode and under `torch.func.grad`, and so are second derivatives.

    Returns:
        Shape (B, N, M, D), dtype as q. Under autocast q, k and v are cast to autocast's
        dtype first.

    Raises:
        ValueError: shapes, dtypes, devices or settings disagree, or `backend` does not
            support the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 1 + 14 * 14, 3, 64).unbind()
        >>> masked_attention(q, k, v, (14, 14), num_special=1, masked_heads=2).shape
        torch.Size([2, 197, 3, 64])
    """
    q, k, v = cast_under_autocast(q, k, v)
    grid = _check(q, k, v, grid, kernel_size, num_special, mask_fill)
    masked_heads = resolve_heads(masked_heads, q.shape[2])
    masked = [head in masked_heads for head in range(q.shape[2])]
    _check_extras(q, kernel_size, masked, bias, global_bias, alpha, mask_fill)
    check_one_device(q, k, v, bias, global_bias, alpha)
    requested = OPERATOR.requested(backend, q, k, v, bias, alpha)
    stencil = dict(
        grid=grid, kernel_size=kernel_size, num_special=num_special, mask_fill=mask_fill
    )
    outs = []
    with without_autocast(q):
        for is_masked, heads, rank in _runs(masked):
            views = [x[:, :, heads] for x in (q, k, v)]
            if is_masked:
                extras = [None if x is None else x[rank] for x in (bias, alpha)]
                outs.append(OPERATOR(*views, *extras, backend=requested, **stencil))
            else:
                extra = None if global_bias is None else global_bias[rank]
                outs.append(_global_heads(*views, extra, requested))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def _global_heads(q, k, v, bias, requested):
    if requested == REFERENCE or needs_reference(q, k, v, bias):
        everything = torch.ones((), dtype=torch.bool, device=q.device)
        return reference.attention_under_mask(q, k, v, everything, bias)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    if bias is not None:
        bias = bias[None].to(q.dtype)  # three dimensions would be slow on CPUs
    return copied(biased_attention(q, k, v, bias).transpose(1, 2))


def resolve_heads(heads: int | Sequence[int] | None, num_heads: int) -> tuple[int, ...]:
    """Return ascending indices of heads, from indices or a number of lowest heads.

    None stands for all heads.
    """
    if heads is None:
        return tuple(range(num_heads))
    is_count = isinstance(heads, int)
    indices = range(heads) if is_count else sorted(set(heads))
    if (is_count and heads < 0) or any(not 0 <= head < num_heads for head in indices):
        raise UserError(
            f'`masked_heads` must be at most {num_heads}, or indices below it, '
            f'got {heads}'
        )
    return tuple(indices)


def _runs(masked: list[bool]) -> Iterator[tuple[bool, slice, slice]]:
    """Yield runs of heads of one kind: whether masked, the heads, their ranks."""
    start, seen = 0, {True: 0, False: 0}
    for is_masked, run in groupby(masked):
        length = len(list(run))
        first = seen[is_masked]
        yield is_masked, slice(start, start + length), slice(first, first + length)
        start += length
        seen[is_masked] += length


def _check(q, k, v, grid, kernel_size, num_special, mask_fill):
    """Return the grid as a tuple."""
    N = check_qkv(q, k, v)[1]
    grid = tuple(grid)
    if len(grid) != 2 or num_special < 0 or num_special + grid[0] * grid[1] != N:
        raise UserError(
            f'`num_special` and `grid` must make {N} tokens, got {num_special=} '
            f'and {grid=}'
        )
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise UserError(f'`kernel_size` must be odd, got {kernel_size}')
    check_choice('`mask_fill`', mask_fill, MASK_FILLS)
    return grid


def _check_extras(q, kernel_size, masked, bias, global_bias, alpha, mask_fill):
    N, num_masked = q.shape[1], sum(masked)
    check_shape('bias', bias, (num_masked, kernel_size, kernel_size))
    check_shape('global_bias', global_bias, (len(masked) - num_masked, N, N))
    check_shape('alpha', alpha, (num_masked,))
    if alpha is not None and (bias is not None or mask_fill != 'zero'):
        raise UserError(
            "a soft mask (`alpha`) supports no `bias` and only mask_fill='zero', got "
            f'{mask_fill=} and bias {None if bias is None else tuple(bias.shape)}'
        )


def _example(device: str, dtype: torch.dtype) -> tuple[tuple, dict]:
    """Return the tensors and the settings of a small call."""
    qkv = (torch.randn(2, 36, 3, 8, device=device).to(dtype) for _ in range(3))
    bias = torch.randn(3, 3, 3, device=device)
    settings = dict(grid=(7, 5), kernel_size=3, num_special=1, mask_fill='zero')
    return (*qkv, bias, None), settings


OPERATOR = Operator(
    'masked_attention',
    reference.masked_attention_reference,
    {'triton': triton_impl, 'cpp': cpp_impl, 'torch': torch_impl},
    tensors='Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? alpha',
    settings='SymInt[] grid, SymInt kernel_size, SymInt num_special, str mask_fill',
    outputs=out_and_statistics,
    example=_example,
    flops=inspection.FLOPS,
    attention=inspection.attention,
    saved=('out', 'lse'),
    decomposition=masked_attention_decomposition,
)
