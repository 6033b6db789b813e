"""Spectra of circular kernels: on their own grid, and resized to another."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from mmattn.ops import circular_kernel_spectrum
from mmattn.ops.structure_aware_attention import (
    half_spectrum,
    hermitian_part,
    irfft_grid,
    resize_circular_kernel,
    resize_half_spectrum,
    rfft_grid,
    whole_spectrum,
)
from tools.benchmark.tolerances import assert_close

GRIDS = [(5,), (8,), (6, 5), (5, 8), (3, 4, 6)]
PAIRS = [
    ((5,), (9,)),
    ((7, 5), (10, 8)),
    ((6, 4), (9, 7)),
    ((6, 4), (3, 8)),
    ((3, 4, 5), (5, 4, 7)),
    ((1, 4), (3, 1)),
]

every_resize = pytest.mark.parametrize('resize', ['zero_embed', 'stretch', 'spectral'])
every_pair = pytest.mark.parametrize('old, new', PAIRS, ids=str)


def draw(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def real(x):
    return torch.view_as_real(x)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
@every_resize
def test_own_grid_is_the_plain_transform(resize, grid):
    w = draw(2, 3, *grid)
    expected = torch.fft.rfftn(w, dim=tuple(range(2, w.dim())))
    spectrum = circular_kernel_spectrum(w, grid, resize=resize)
    assert torch.equal(expected, spectrum)
    assert_close('kernel', w, irfft_grid(spectrum, grid))


@every_pair
@every_resize
def test_shape_dtype_and_realness(resize, old, new):
    spectrum = circular_kernel_spectrum(draw(2, *old), new, resize=resize)
    assert spectrum.shape == (2, *new[:-1], new[-1] // 2 + 1)
    kernel = resize_circular_kernel(draw(2, *old), new, resize=resize)
    assert kernel.shape == (2, *new) and not kernel.is_complex()
    assert_close('spectrum', real(rfft_grid(kernel, new)), real(spectrum))
    half = circular_kernel_spectrum(draw(2, *old).half(), new, resize=resize)
    assert half.dtype == torch.complex64


@every_pair
def test_zero_embed_keeps_taps_by_offset(old, new):
    w = draw(*old)
    out = resize_circular_kernel(w, new, resize='zero_embed')
    kept = [
        range(-(min(sides) // 2), min(sides) - min(sides) // 2)
        for sides in zip(old, new, strict=True)
    ]
    expected = torch.zeros(new, dtype=w.dtype)
    for offset in product(*kept):
        expected[offset] = w[offset]  # negative offsets count from the end
    assert torch.equal(expected, out)


def test_stretch_by_a_whole_factor_keeps_every_tap():
    w = draw(2, 6, 4)
    out = resize_circular_kernel(w, (12, 12), resize='stretch')
    assert_close('taps', w / 6, out[:, ::2, ::3])


@pytest.mark.parametrize(
    'old, new', [*PAIRS[1:4], ((14, 14), (24, 24)), ((14, 14), (15, 15))], ids=str
)
def test_gfnet_interpolates_the_half_spectrum_as_an_image(old, new):
    """By PyTorch: both parts of the half-spectrum, from corner to corner."""
    w = draw(3, *old)
    parts = torch.view_as_real(torch.fft.rfft2(w)).permute(0, 3, 1, 2)
    size = (new[0], new[1] // 2 + 1)
    parts = F.interpolate(parts, size, mode='bicubic', align_corners=True)
    half = torch.view_as_complex(parts.permute(0, 2, 3, 1).contiguous())
    assert_close('half', real(half), real(resize_half_spectrum(rfft_grid(w, old), new)))
    expected = torch.fft.irfft2(half, s=new)
    out = resize_circular_kernel(w, new, resize='gfnet')
    assert_close('kernel', expected, out)
    spectral = resize_circular_kernel(w, new, resize='spectral')
    assert (spectral - expected).norm() > 0.2 * expected.norm()


def test_autocast_does_not_round_the_half_spectrum():
    half = rfft_grid(draw(3, 8, 6), (8, 6))
    with torch.autocast('cpu', torch.bfloat16):
        out = resize_half_spectrum(half, (5, 9))
    assert_close('half', real(resize_half_spectrum(half, (5, 9))), real(out))


@every_resize
def test_gradcheck(resize):
    old, new = (3, 4, 5), (5, 4, 7)
    w = draw(2, *old).requires_grad_()

    def function(w):
        return real(circular_kernel_spectrum(w, new, resize=resize))

    assert torch.autograd.gradcheck(function, w)


def test_unknown_resize_names_the_known_ones():
    with pytest.raises(ValueError, match="'zero_embed'.*'spectral'.*got 'bicubic'"):
        circular_kernel_spectrum(draw(4, 4), (4, 4), resize='bicubic')


@pytest.mark.parametrize('grid', [(), (3, 0), (2, 2, 2)], ids=str)
def test_wrong_grid(grid):
    with pytest.raises(ValueError, match=r'one to 2 .*\(4, 4\), got \('):
        circular_kernel_spectrum(draw(4, 4), grid)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_whole_and_half_spectra(grid):
    """They belong to the values that `irfftn` makes of any half-spectrum."""
    dims = tuple(range(-len(grid), 0))
    half = torch.complex(draw(2, *grid), draw(2, *grid).flip(0))
    half = half[..., : grid[-1] // 2 + 1]
    values = irfft_grid(half, grid)
    expected = rfft_grid(values, grid)
    assert_close('part', real(expected), real(hermitian_part(half, grid)))
    two = torch.fft.fftn(torch.complex(values, values.flip(0)), dim=dims)
    assert_close('half', real(expected), real(half_spectrum(two, grid)))
    expected = torch.fft.fftn(values, dim=dims)
    assert_close('whole', real(expected), real(whole_spectrum(half, grid)))
