"""The operators that structure-aware attention is compared with, as plain PyTorch.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289: equations 9 to 11 (4 and 5
in its tables and pseudo-code) and the local kernels of Table 3(d). They are on grids of
two sides, are not periodic, and take O(N^2) or more time: they are for ablations.

Tables of relative positions have shape (2H - 1, 2W - 1). Entry (H - 1 + a, W - 1 + b)
weighs the key or value a rows below and b columns to the right of the query. One table
per side pair, where the paper's text has 2N - 1 entries, is what its parameter counts
ask for.

B batch, N = H * W tokens in row-major order, M heads, D head width, K patterns. Storage
in any floating-point dtype; arithmetic in float32 (float64 in float64), under autocast
too.
"""

import functools
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import is_autocast_on
from ..precision import compute_dtype
from .reference import l2_normalize


def _in_compute_dtype(operator):
    """Casts tensors before and the result after, and keeps autocast out."""

    @functools.wraps(operator)
    def wrapped(q: Tensor, *tensors: Tensor, **kwargs) -> Tensor:
        dtype, device = compute_dtype(q.dtype), q.device.type
        on = is_autocast_on(device)
        with torch.autocast(device, enabled=False) if on else nullcontext():
            out = operator(*(x.to(dtype) for x in (q, *tensors)), **kwargs)
        return out.to(q.dtype)

    return wrapped


def block_toeplitz(table: Tensor) -> Tensor:
    """Matrices (..., N, N) from tables (..., 2H - 1, 2W - 1); rows are queries."""
    H, W = ((side + 1) // 2 for side in table.shape[-2:])
    windows = table.unfold(-2, H, 1).unfold(-2, W, 1)  # (..., H, W, H, W), from the end
    return windows.flip(-4, -3).flatten(-4, -3).flatten(-2)


@_in_compute_dtype
def relative_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Equation 9: correlations times learned weights of the relative position.

        out[i] = sum_j (q[i] . k[j]) R[i, j] v[j],   R = block_toeplitz(table)

    with q and k normalized over the channels of a head.

    Args:
        q, k, v: shape (B, N, M, D).
        table: shape (2H - 1, 2W - 1), or (M, 2H - 1, 2W - 1) with one per head.

    Returns:
        Shape (B, N, M, D).

    Raises:
        ValueError: the shapes disagree.
    """
    M = _check_qkv(q, k, v)[2]
    _check_table('table', table, q, (), (M,))
    q, k = l2_normalize(q), l2_normalize(k)
    kernels = torch.einsum('bimd,bjmd->bmij', q, k) * block_toeplitz(table)
    return torch.einsum('bmij,bjmd->bimd', kernels, v)


@_in_compute_dtype
def pattern_attention(
    q: Tensor, k: Tensor, v: Tensor, table_a: Tensor, table_b: Tensor, bias: Tensor
) -> Tensor:
    """Equations 10 and 11: patterns of the correlation make the kernel anew.

        p[k, i] = sum_n sum_c q[i, c] k[n, c] Ra[c, k, i, n]
        out[i, v] = sum_k p[k, i] (sum_j Rb[k, i, j] v[j, v] + bias[v, k])

    with q and k normalized over the channels of a head. Ra does not depend on c in
    equation 10, and does in equation 11 (the Hadamard correlation). With periodic
    tables, equation 11 is `structure_aware_attention`.

    Args:
        q, k, v: shape (B, N, M, D).
        table_a: of Ra; shape (K, 2H - 1, 2W - 1) for equation 10, (D, K, 2H - 1,
            2W - 1) for equation 11; shared by the heads.
        table_b: of Rb; shape (K, 2H - 1, 2W - 1), shared by heads and channels.
        bias: shape (D, K), shared by the heads.

    Returns:
        Shape (B, N, M, D).

    Raises:
        ValueError: the shapes disagree.
    """
    D = _check_qkv(q, k, v)[3]
    K = _check_bias(bias, D)
    _check_table('table_a', table_a, q, (K,), (D, K))
    _check_table('table_b', table_b, q, (K,))
    if table_a.shape[-2:] != table_b.shape[-2:]:
        raise ValueError(
            'table_a and table_b must be for one grid, got '
            f'{tuple(table_a.shape)} and {tuple(table_b.shape)}'
        )
    r_a, r_b = block_toeplitz(table_a), block_toeplitz(table_b)
    channel = 'c' if r_a.dim() == 4 else ''
    g_a = torch.einsum(f'bnmc,{channel}kin->bimck', l2_normalize(k), r_a)
    g_b = torch.einsum('bjmv,kij->bimvk', v, r_b)
    return _contract(q, g_a, g_b, bias)


@_in_compute_dtype
def local_structure_aware_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_a: Tensor,
    w_b: Tensor,
    bias: Tensor,
    *,
    grid: tuple[int, int],
) -> Tensor:
    """Structure-aware attention with small kernels in place of circular ones.

    It is equation 11 with tables that are zero beyond R // 2 rows and columns: beyond
    the border of the grid there is nothing, which is a padding of k and v with zeros.

    Args:
        q, k, v: shape (B, N, M, D).
        w_a: kernels of k, shape (D, K, R, R'), with odd sides, shared by the heads.
        w_b: kernels of v, shape (K, R, R'), shared by heads and channels.
        bias: shape (D, K), shared by the heads.
        grid: height and width.

    Returns:
        Shape (B, N, M, D).

    Raises:
        ValueError: the shapes disagree.
    """
    B, N, M, D = _check_qkv(q, k, v)
    K = _check_bias(bias, D)
    H, W = grid
    if H * W != N:
        raise ValueError(f'{N} tokens are not a grid of {H}x{W}')
    size = tuple(w_b.shape[1:])
    odd = len(size) == 2 and size[0] % 2 and size[1] % 2
    if not odd or w_a.shape != (D, K, *size) or w_b.shape[0] != K:
        raise ValueError(
            f'w_a and w_b must have shapes ({D}, {K}, R, R) and ({K}, R, R) with odd '
            f'R, got {tuple(w_a.shape)} and {tuple(w_b.shape)}'
        )
    k, v = (
        x.permute(0, 2, 3, 1).unflatten(-1, (H, W))  # (B, M, D, H, W)
        for x in (l2_normalize(k), v)
    )
    padding = (size[0] // 2, size[1] // 2)
    kernels = w_a.flatten(0, 1).unsqueeze(1)  # (DK, 1, R, R')
    g_a = F.conv2d(k.flatten(0, 1), kernels, padding=padding, groups=D)
    g_b = F.conv2d(v.flatten(0, 2).unsqueeze(1), w_b.unsqueeze(1), padding=padding)
    g_a, g_b = (
        x.reshape(B, M, D, K, N).permute(0, 4, 1, 2, 3)  # (B, N, M, D, K)
        for x in (g_a, g_b)
    )
    return _contract(q, g_a, g_b, bias)


def _contract(q: Tensor, g_a: Tensor, g_b: Tensor, bias: Tensor) -> Tensor:
    """g_a and g_b have shape (B, N, M, D, K); the result (B, N, M, D)."""
    patterns = torch.einsum('bimc,bimck->bimk', l2_normalize(q), g_a)
    return torch.einsum('bimk,bimvk->bimv', patterns, g_b + bias)


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> torch.Size:
    if q.dim() != 4 or k.shape != q.shape or v.shape != q.shape:
        raise ValueError(
            'q, k and v must have one shape (B, N, M, D), got '
            f'{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}'
        )
    return q.shape


def _check_bias(bias: Tensor, D: int) -> int:
    """Returns the number of patterns."""
    if bias.dim() != 2 or bias.shape[0] != D:
        raise ValueError(f'bias must have shape ({D}, K), got {tuple(bias.shape)}')
    return bias.shape[1]


def _check_table(name: str, table: Tensor, q: Tensor, *leading: tuple[int, ...]):
    """A table's shape is one of `leading`, and 2H - 1 and 2W - 1 with H * W = N."""
    N, shape = q.shape[1], tuple(table.shape)
    rows, columns = shape[-2:] if len(shape) > 1 else (0, 0)
    fits = rows % 2 and columns % 2 and (rows + 1) * (columns + 1) == 4 * N
    if not fits or shape[:-2] not in leading:
        expected = ' or '.join(
            f'({", ".join(map(str, (*axes, "2H-1", "2W-1")))})' for axes in leading
        )
        raise ValueError(
            f'{name} must have shape {expected} with H * W = {N}, got {shape}'
        )
