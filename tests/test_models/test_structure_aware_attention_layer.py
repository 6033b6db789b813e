"""StructureAwareAttention: against the explicit matrices, and on other grids."""

import pytest
import torch
from layer_checks import randn
from refusals import refuses
from resampling import resized
from torch import nn
from torch.testing import assert_close

import mmattn.models.layers.structure_aware.attention as layer_module
from mmattn.models.layers import StructureAwareAttention
from mmattn.ops.structure_aware_attention import structure_aware_attention_circulant

GRIDS = [(5,), (7, 5), (4, 6), (1, 1), (3, 2, 5)]
FREQUENCY = dict(kernel_resize='gfnet', kernel_domain='frequency')


def build(grid=(7, 6), dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    layer = StructureAwareAttention(24, 3, grid, **{'patterns': 4, **kwargs})
    nn.init.normal_(layer.qkv.weight, std=0.2)
    return layer.to(dtype)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_equals_the_explicit_matrices(grid):
    layer = build(grid)
    x = randn(2, *grid, 24)
    qkv = layer.qkv(x).flatten(1, -2).unflatten(-1, (3, 3, 8))
    out = structure_aware_attention_circulant(
        *qkv.unbind(2), layer.w_a, layer.w_b, layer.bias
    )
    expected = layer.proj(layer.norm(out.flatten(2))).view_as(x)
    assert_close(layer(x), expected)
    with torch.no_grad():
        assert_close(layer.eval()(x), expected)


RESIZES = ['zero_embed', 'stretch', 'spectral', 'gfnet']
SETTINGS = [dict(kernel_resize=resize) for resize in RESIZES]


@pytest.mark.parametrize('settings', [*SETTINGS, FREQUENCY], ids=str)
@pytest.mark.parametrize('grid', [(11, 9), (4, 3)], ids=str)
def test_kernels_are_resized_on_load_as_at_run_time(settings, grid):
    layer, other = build(**settings), build(grid, **settings)
    nn.init.normal_(layer.w_a), nn.init.normal_(layer.w_b)
    weights = layer.state_dict()
    nn.ModuleDict({'a': other}).load_state_dict(
        {f'a.{name}': value for name, value in weights.items()}
    )
    assert weights['w_a'].shape == layer.w_a.shape, 'the source is left alone'
    x = randn(2, *grid, 24)
    assert_close(other(x), layer(x))


def in_frequency(grid=(7, 6), **kwargs):
    return build(grid, **FREQUENCY, **kwargs)


@pytest.mark.parametrize(
    'grid, backend',
    [((5,), 'torch'), ((7, 5), 'torch'), ((9, 8), 'reference'), ((3, 2, 5), 'torch')],
    ids=str,
)
def test_spectra_are_the_function_of_their_kernels(grid, backend):
    """Drawn alike they are equal, in eval mode too; so they are if they are loaded."""
    layer = build(grid, kernel_resize='gfnet', backend=backend)
    drawn, loaded = (in_frequency(grid, backend=backend) for _ in range(2))
    loaded.reset_kernels()
    loaded.load_state_dict(layer.state_dict())
    assert loaded.w_b.shape == (4, *grid[:-1], grid[-1] // 2 + 1, 2)
    x = randn(2, *grid, 24)
    for half in (drawn.float().double(), loaded):
        exact = half is loaded
        tolerance = dict(rtol=0, atol=1e-12 if exact else 1e-5)
        assert_close(half(x), layer(x), **tolerance)
        with torch.no_grad():
            assert_close(half.eval()(x), layer(x), **tolerance)


@pytest.mark.parametrize(
    'grid, backend',
    [((7, 6), 'torch'), ((6, 5), 'torch'), ((9, 8), 'reference'), ((6,), 'torch')],
    ids=str,
)
def test_what_no_real_kernel_has_changes_nothing(grid, backend):
    """Random half-spectra act as their kernels, and the rest gets no gradient."""
    half = in_frequency(grid, backend=backend)
    layer = build(grid, kernel_resize='gfnet', backend=backend)
    nn.init.normal_(half.w_a), nn.init.normal_(half.w_b)
    dims = tuple(range(-len(grid), 0))
    weights = half.state_dict()
    for name in ('w_a', 'w_b'):
        spectrum = torch.view_as_complex(weights[name])
        weights[name] = torch.fft.irfftn(spectrum, s=grid, dim=dims)
    layer.load_state_dict(weights)
    for spectrum, w in zip(half.spectra(grid), (layer.w_a, layer.w_b), strict=True):
        assert_close(spectrum, torch.fft.rfftn(w, dim=dims))
    x = randn(2, *grid, 24)
    out = half(x)
    assert_close(out, layer(x), rtol=0, atol=1e-12)
    out.square().sum().backward()
    for w in (half.w_a, half.w_b):
        grad = torch.view_as_complex(w.grad)
        kernels = torch.fft.irfftn(grad, s=grid, dim=dims)
        assert_close(torch.fft.rfftn(kernels, dim=dims), grad)
        assert grad.abs().sum() > 0


def test_spectra_are_loaded_as_gfnet_resizes_them():
    layer, other = build((14, 14)), in_frequency((24, 24))
    other.load_state_dict(layer.state_dict())
    for loaded, w in ((other.w_a, layer.w_a), (other.w_b, layer.w_b)):
        parts = torch.view_as_real(torch.fft.rfft2(w)).movedim(-1, -3)  # (.., 2, H, W)
        expected = resized(parts, (24, 13), align_corners=True).movedim(-3, -1)
        assert_close(loaded, expected, rtol=0, atol=1e-12)


def test_other_kernels_are_refused():
    other = StructureAwareAttention(24, 4, (5, 5), patterns=4)
    for layer, weights in (
        (build(), in_frequency()),
        (build(), other),
        (in_frequency(), other),
    ):
        with pytest.raises(RuntimeError, match='size mismatch for w_a'):
            layer.load_state_dict(weights.state_dict())


def test_operator_takes_the_dtype_of_autocast(monkeypatch):
    """Nothing is copied to float32, in which kernels compute."""
    seen = []
    operator = layer_module.structure_aware_attention

    def watching(*tensors, **kwargs):
        out = operator(*tensors, **kwargs)
        seen.extend(x.dtype for x in (*tensors[:3], out))
        assert all(w.dtype == torch.complex64 for w in tensors[3:5])
        return out

    monkeypatch.setattr(layer_module, 'structure_aware_attention', watching)
    layer = build(dtype=torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        out = layer(randn(2, 7, 6, 24, dtype=torch.float32))
    assert seen == [torch.bfloat16] * 4 and out.dtype == torch.bfloat16


test_wrong_arguments = refuses(
    lambda num_heads=3, grid=(4, 4), **kwargs: StructureAwareAttention(
        24, num_heads, grid, **kwargs
    ),
    (dict(num_heads=5), '24 channels do not split into 5 heads'),
    (dict(grid=(4, 0)), r'\(4, 0\)'),
    (dict(grid=(2, 2, 2, 2)), r'\(2, 2, 2, 2\)'),
    (dict(patterns=0), 'patterns .* got 0'),
    (dict(kernel_resize='nearest'), "'nearest'"),
    (dict(kernel_domain='time'), "'spatial', 'frequency'.* got 'time'"),
    (dict(kernel_domain='frequency', kernel_resize='stretch'), 'requires .*gfnet'),
    (dict(fft_dims=3), 'fft_dims .* got 3'),
    (dict(cache_size=-1), 'cache_size .* got -1'),
)
