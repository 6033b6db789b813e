"""Operators that the paper compares structure-aware attention with, in plain PyTorch.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289: equations 9 to 11 (4 and 5
in its tables and pseudo-code) and the local kernels of Table 3(d). They support grids
of two sides, are not periodic and take O(N^2) time or more, for ablations only.

Tables of relative positions have shape (2H - 1, 2W - 1). Entry (H - 1 + a, W - 1 + b)
weighs the key or value a rows below and b columns to the right of the query. The
paper's text has tables of 2N - 1 entries; its parameter counts imply these.

B batch, N = H * W tokens in row-major order, M heads, D head width, K patterns. Storage
may be of any floating-point dtype. Arithmetic is in float32, or in float64 for float64,
under autocast too.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from mmattn.errors import UserError
from mmattn.ops.common.checks import check_qkv
from mmattn.ops.common.precision import compute_dtype, without_autocast
from mmattn.ops.structure_aware_attention import l2_normalize


def _in_compute_dtype(operator):
    """Run an operator outside autocast in the dtype of the arithmetic."""

    @functools.wraps(operator)
    def wrapped(q: Tensor, *tensors: Tensor, **kwargs) -> Tensor:
        dtype = compute_dtype(q.dtype)
        with without_autocast(q):
            out = operator(*(x.to(dtype) for x in (q, *tensors)), **kwargs)
        return out.to(q.dtype)

    return wrapped


def block_toeplitz(table: Tensor, dims: int = 2) -> Tensor:
    """Return matrices (..., N, N) of tables (..., 2H - 1, 2W - 1); rows are queries.

    The grid has `dims` sides, and so have the tables, for example (..., 2T - 1, 2H - 1,
    2W - 1).
    """
    windows = table
    for side in table.shape[-dims:]:
        windows = windows.unfold(-dims, (side + 1) // 2, 1)  # (..., *grid, *grid)
    queries = tuple(range(-2 * dims, -dims))  # from the end of the grid
    return windows.flip(queries).flatten(-2 * dims, -dims - 1).flatten(-dims)


@_in_compute_dtype
def relative_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Weigh correlations by learned weights of the relative position, equation 9.

        out[i] = sum_j (q[i] . k[j]) R[i, j] v[j],   R = block_toeplitz(table)

    with q and k normalized over the channels of a head.

    Args:
        q, k, v: shape (B, N, M, D).
        table: shape (2H - 1, 2W - 1), or (M, 2H - 1, 2W - 1) for a table per head.

    Returns:
        Shape (B, N, M, D).

    Raises:
        ValueError: the shapes disagree.
    """
    M = check_qkv(q, k, v)[2]
    _check_table('table', table, q, (), (M,))
    q, k = l2_normalize(q), l2_normalize(k)
    kernels = torch.einsum('bimd,bjmd->bmij', q, k) * block_toeplitz(table)
    return torch.einsum('bmij,bjmd->bimd', kernels, v)


@_in_compute_dtype
def pattern_attention(
    q: Tensor, k: Tensor, v: Tensor, table_a: Tensor, table_b: Tensor, bias: Tensor
) -> Tensor:
    """Compose the kernel from patterns of the correlation, equations 10 and 11.

        p[k, i] = sum_n sum_c q[i, c] k[n, c] Ra[c, k, i, n]
        out[i, v] = sum_k p[k, i] (sum_j Rb[k, i, j] v[j, v] + bias[v, k])

    with q and k normalized over the channels of a head. Ra does not depend on c in
    equation 10, and does in equation 11 (the Hadamard correlation). With periodic
    tables, equation 11 is `structure_aware_attention`.

    Args:
        q, k, v: shape (B, N, M, D).
        table_a: table of Ra, shape (K, 2H - 1, 2W - 1) for equation 10 or (D, K,
            2H - 1, 2W - 1) for equation 11, shared by the heads.
        table_b: table of Rb, shape (K, 2H - 1, 2W - 1), shared by heads and channels.
        bias: shape (D, K), shared by the heads.

    Returns:
        Shape (B, N, M, D).

    Raises:
        ValueError: the shapes disagree.
    """
    D = check_qkv(q, k, v)[3]
    K = _check_bias(bias, D)
    _check_table('table_a', table_a, q, (K,), (D, K))
    _check_table('table_b', table_b, q, (K,))
    if table_a.shape[-2:] != table_b.shape[-2:]:
        raise UserError(
            '`table_a` and `table_b` must be for one grid, got '
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
    """Compute structure-aware attention with small kernels instead of circular ones.

    This is equation 11 with tables that are zero beyond R // 2 rows and columns. k and
    v are padded with zeros beyond the border of the grid.

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
    B, N, M, D = check_qkv(q, k, v)
    K = _check_bias(bias, D)
    H, W = grid
    if H * W != N:
        raise UserError(f'`grid` must have {N} tokens, got {H}x{W}')
    size = tuple(w_b.shape[1:])
    odd = len(size) == 2 and size[0] % 2 and size[1] % 2
    if not odd or w_a.shape != (D, K, *size) or w_b.shape[0] != K:
        raise UserError(
            f'`w_a` and `w_b` must have shapes ({D}, {K}, R, R) and ({K}, R, R), odd '
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
    """Contract g_a and g_b (B, N, M, D, K) with q to a result (B, N, M, D)."""
    patterns = torch.einsum('bimc,bimck->bimk', l2_normalize(q), g_a)
    return torch.einsum('bimk,bimvk->bimv', patterns, g_b + bias)


def _check_bias(bias: Tensor, D: int) -> int:
    """Return the number of patterns."""
    if bias.dim() != 2 or bias.shape[0] != D:
        raise UserError(f'`bias` must have shape ({D}, K), got {tuple(bias.shape)}')
    return bias.shape[1]


def _check_table(name: str, table: Tensor, q: Tensor, *leading: tuple[int, ...]):
    """Check that a table has leading axes of `leading` and sides of a grid."""
    N, shape = q.shape[1], tuple(table.shape)
    rows, columns = shape[-2:] if len(shape) > 1 else (0, 0)
    fits = rows % 2 and columns % 2 and (rows + 1) * (columns + 1) == 4 * N
    if not fits or shape[:-2] not in leading:
        expected = ' or '.join(
            f'({", ".join(map(str, (*axes, "2H-1", "2W-1")))})' for axes in leading
        )
        raise UserError(
            f'`{name}` must have shape {expected} with H * W = {N}, got {shape}'
        )
