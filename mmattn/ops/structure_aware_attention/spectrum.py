"""Spectra of circular kernels: on their own grid, or resized to another."""

from collections.abc import Callable, Sequence
from math import pi

import torch
from torch import Tensor

from mmattn.errors import UserError, check_choice

from ..common.exporting import is_same_size
from ..common.precision import compute_dtype, without_autocast

RESIZES = ('zero_embed', 'stretch', 'spectral', 'gfnet')
CUBIC = -0.75  # slope of the cubic kernel at distance 1


def rfft_grid(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the half-spectrum (..., *grid[:-1], grid[-1] // 2 + 1) of (..., *grid)."""
    return torch.fft.rfftn(x, dim=tuple(range(-len(grid), 0)))


def irfft_grid(spectrum: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Invert `rfft_grid`; the grid distinguishes odd widths from even ones."""
    return torch.fft.irfftn(spectrum, s=grid, dim=tuple(range(-len(grid), 0)))


def whole_spectrum(half: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the spectrum (..., *grid) of the real values of a half-spectrum.

    Like `irfft_grid`, this takes the Hermitian part of columns that mirror themselves.
    """
    width, stored = grid[-1], half.shape[-1]
    mirror = _mirror(half, grid)
    rest = mirror[..., 1 : (width + 1) // 2].flip(-1)
    whole = torch.cat([half, rest], -1)
    for column in {0, stored - 1 if width % 2 == 0 else 0}:
        whole[..., column] += mirror[..., column]
        whole[..., column] /= 2
    return whole


def hermitian_part(half: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the half-spectrum of the real values `irfft_grid` makes of any one.

    In the columns that mirror themselves, the rest stands for no real value. Backends
    need not agree on what becomes of it.
    """
    own_mirror, half = _is_own_mirror(grid, half.device), half.clone()
    for end in (slice(1), slice(-1, None)):  # no column between mirrors itself
        column = half[..., end]
        part = (column + _mirror(column, grid)) / 2
        half[..., end] = torch.where(own_mirror[end], part, column)
    return half


def half_spectrum(whole: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the half-spectrum of the real part of the values of a spectrum."""
    dims = list(range(-len(grid), 0))
    mirror = whole.flip(dims).roll([1] * len(grid), dims).conj_physical()
    stored = slice(grid[-1] // 2 + 1)
    return (whole[..., stored] + mirror[..., stored]) / 2


def column_weights(grid: tuple[int, ...], like: Tensor) -> Tensor:
    """Return how often each column of a half-spectrum occurs in the whole, over N.

    The shape is (grid[-1] // 2 + 1,). The product with the transform of a gradient of
    real values is the gradient of the half-spectrum that the values were made from.
    """
    count = 1
    for side in grid:
        count = count * side
    own_mirror = _is_own_mirror(grid, like.device)
    return torch.where(own_mirror, 1.0, 2.0).to(like.real.dtype) / count


def circular_kernel_spectrum(
    w: Tensor, grid: Sequence[int], *, resize: str = 'gfnet'
) -> Tensor:
    """Return the half-spectrum on any grid of kernels stored for the training grid.

    A circular kernel has its offset 0 in the first corner and negative offsets at the
    far ends, so it cannot be resized like an image.

    Args:
        w: kernels, shape (..., *old_grid), real.
        grid: sides of the new grid, as many as of the old grid.
        resize: how to resize the kernel if the grids differ.
            'zero_embed': taps keep their offsets in pixels, and those that the smaller
            grid lacks are dropped. Growing samples the kernel's spectrum more finely,
            exactly. The middle tap of an even side counts as a negative offset.
            'stretch': the kernel covers the same part of the grid as before. Offset 0
            stays, taps are interpolated cubically, and a factor keeps the sum of a
            smooth kernel, exactly if sides grow by whole factors.
            'spectral': the samples of the whole spectrum, which is periodic, are
            interpolated cubically. This is close to 'zero_embed' for kernels that are
            small away from offset 0.
            'gfnet': the half-spectrum is interpolated cubically as if it were an image,
            see `resize_half_spectrum`. The paper cites GFNet for its 384 pixels.

    Returns:
        Shape (..., *grid[:-1], grid[-1] // 2 + 1), complex64, or complex128 for
        float64.

    Raises:
        ValueError: unknown `resize`, or `grid` has no or too many sides.
    """
    grid, old_grid = tuple(grid), _grid_of(w, grid, resize)
    w = w.to(compute_dtype(w.dtype))
    if resize == 'gfnet' and not is_same_size(grid, old_grid):
        half = resize_half_spectrum(rfft_grid(w, old_grid), grid)
        return hermitian_part(half, grid)
    return rfft_grid(resize_circular_kernel(w, grid, resize=resize), grid)


def resize_circular_kernel(w: Tensor, grid: Sequence[int], *, resize: str) -> Tensor:
    """Return the kernels (..., *grid) that `circular_kernel_spectrum` transforms."""
    grid, old_grid = tuple(grid), _grid_of(w, grid, resize)
    if is_same_size(grid, old_grid):
        return w
    if resize == 'gfnet':
        return irfft_grid(circular_kernel_spectrum(w, grid, resize=resize), grid)
    matrix = {
        'zero_embed': _embedding_matrix,
        'stretch': _stretching_matrix,
        'spectral': _spectral_matrix,
    }[resize]
    wide = w.to(compute_dtype(w.dtype))
    sides = zip(old_grid, grid, strict=True)
    matrices = [matrix(old, new, like=wide) for old, new in sides]
    return _along_grid(wide, matrices).to(w.dtype)


def resize_half_spectrum(half: Tensor, grid: Sequence[int]) -> Tensor:
    """Resize a half-spectrum to another grid, as the code of GFNet does.

    It interpolates real and imaginary parts (bicubic, `align_corners=True`), although
    the rows are periodic. The first and the last frequency stay in place. See
    https://github.com/raoyongming/GFNet, main_gfnet.py, for the paper
    https://arxiv.org/abs/2107.00645.

    Args:
        half: complex, shape (..., *old_grid[:-1], old_grid[-1] // 2 + 1).
        grid: sides of the new grid, as many as of the old grid.

    Returns:
        Complex, shape (..., *grid[:-1], grid[-1] // 2 + 1). See `hermitian_part`.
    """
    stored = (*grid[:-1], grid[-1] // 2 + 1)
    old = half.shape[-len(stored) :]
    if tuple(old) == stored:
        return half
    matrices = [
        _bounded_matrix(*sides, like=half.real)
        for sides in zip(old, stored, strict=True)
    ]
    if not half.is_complex():
        return _along_grid(half, matrices)
    parts = torch.stack([half.real, half.imag])  # complex products take twice as long
    with without_autocast(parts):
        real, imag = _along_grid(parts, matrices)
        # `torch.complex` would keep both for its backward.
        return torch.view_as_complex(torch.stack([real, imag], -1))


def _mirror(half: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the conjugates at the negative frequencies of the leading sides."""
    leading = list(range(-len(grid), -1))
    mirror = half.conj_physical()
    if leading:
        mirror = mirror.flip(leading).roll([1] * len(leading), leading)
    return mirror


def _is_own_mirror(grid: tuple[int, ...], device: torch.device) -> Tensor:
    """Return which columns of the half-spectrum occur once in the whole one."""
    column = torch.arange(grid[-1] // 2 + 1, device=device)
    return (column == 0) | (2 * column == grid[-1])


def _grid_of(w: Tensor, grid: Sequence[int], resize: str) -> tuple[int, ...]:
    check_choice('`resize`', resize, RESIZES)
    if not 1 <= len(grid) <= w.dim() or min(grid) < 1:
        raise UserError(
            f'`grid` must have one to {w.dim()} positive sides for kernels of shape '
            f'{tuple(w.shape)}, got {tuple(grid)}'
        )
    return tuple(w.shape[-len(grid) :])


def _along_grid(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply each of the last axes of `x` by a matrix."""
    for dim, matrix in enumerate(matrices, start=-len(matrices)):
        x = (x.movedim(dim, -1) @ matrix.mT).movedim(-1, dim)
    return x


def waves(side: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of `count` frequencies at all places, (count, side)."""
    place = torch.arange(side, device=like.device)
    turns = torch.arange(count, device=like.device)[:, None] * place
    # A tensor, since the ONNX exporter supports no symbolic divisor.
    turns = turns.remainder(torch.full((), side, device=like.device))
    # Small angles have small rounding errors.
    turns = torch.where(2 * turns > side, turns - side, turns)
    angle = turns.to(like.dtype) * (2 * pi / side)
    return angle.cos(), angle.sin()


def _embedding_matrix(old: int, new: int, *, like: Tensor) -> Tensor:
    """Return the matrix that keeps each tap at its offset in pixels."""
    offsets, old_offsets = (_offsets(side, like.device) for side in (new, old))
    return (offsets[:, None] == old_offsets).to(like.dtype)


def _offsets(side: int, device: torch.device) -> Tensor:
    """Return the offset of each tap of a side; the second half is negative."""
    index = torch.arange(side, device=device)
    return torch.where(index < (side + 1) // 2, index, index - side)


def _stretching_matrix(old: int, new: int, *, like: Tensor) -> Tensor:
    return _periodic_matrix(old, new, like=like) * (old / new)


def _spectral_matrix(old: int, new: int, *, like: Tensor) -> Tensor:
    """Return the matrix from taps to taps that interpolates spectra. It is real."""
    matrix = _periodic_matrix(old, new, like=like)
    pairs = zip(waves(new, new, like), waves(old, old, like), strict=True)
    return sum(back @ matrix @ there for back, there in pairs) / new


def _periodic_matrix(old: int, new: int, *, like: Tensor) -> Tensor:
    """Return the matrix that samples `old` periodic values at `new` places."""
    places = torch.arange(new, device=like.device) * old
    return _cubic_matrix(places, new, old, lambda i: i.remainder(old), like=like)


def _bounded_matrix(old: int, new: int, *, like: Tensor) -> Tensor:
    """Return the matrix that samples `old` values at `new` places, end to end."""
    places, steps = torch.arange(new, device=like.device) * (old - 1), max(1, new - 1)
    return _cubic_matrix(places, steps, old, lambda i: i.clamp(0, old - 1), like=like)


def _cubic_matrix(
    places: Tensor,
    steps: int,
    old: int,
    entry: Callable[[Tensor], Tensor],
    *,
    like: Tensor,
) -> Tensor:
    """Return the matrix (len(places), old) that samples `old` values at places.

    Places are integers, in units of 1 / `steps`, so that float32 loses no digit of
    large ones. `entry` maps places beyond the ends to values. The weights equal
    `F.interpolate(mode='bicubic')`.
    """
    # A tensor, since the ONNX exporter supports no symbolic divisor.
    steps = torch.full((), steps, device=like.device)
    near = places.div(steps, rounding_mode='floor')
    fraction = (places - near * steps).to(like.dtype) / steps
    taps = torch.arange(-1, 3, device=like.device)
    distance = (fraction[:, None] - taps).abs()  # (len(places), 4)
    inner = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
    outer = CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    weight = torch.where(distance <= 1, inner, outer)
    index = torch.arange(old, device=like.device)
    is_entry = entry(near[:, None] + taps)[..., None] == index
    return (weight[..., None] * is_entry).sum(1)
