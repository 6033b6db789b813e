"""The module around `fused_ms_deform_attn`: golden values, a rewrite, its edges."""

import pytest
import torch
from golden import assert_golden, golden, hashed, hashed_parameters
from refusals import refuses
from torch.testing import assert_close

from mmattn.models.layers import MSDeformAttention
from mmattn.ops import fused_ms_deform_attn

SHAPES = [(4, 6), (3, 2), (1, 1)]
PIXELS = sum(H * W for H, W in SHAPES)


def build(embed_dims=8, num_heads=2, num_levels=3, num_points=2, **kwargs):
    """In float64, filled by the hash: points up to about two pixels away."""
    settings = embed_dims, num_heads, num_levels, num_points
    module = MSDeformAttention(*settings, **kwargs).double()
    module.load_state_dict(hashed_parameters(module.state_dict()))
    return module


def inputs(B=2, Q=5, C=8, sides=2, levels=3):
    query, value = hashed('query', (B, Q, C)), hashed('value', (B, PIXELS, C))
    reference = (hashed('ref', (B, Q, levels, sides)) + 1) / 2
    return query, value, reference


def test_official_values():
    shapes = [(8, 12), (4, 6), (2, 3)]
    pixels = sum(H * W for H, W in shapes)
    query, value = hashed('query', (2, 5, 64)), hashed('value', (2, pixels, 64))
    reference = (hashed('ref', (2, 5, 3, 2)) + 1) / 2
    padding = torch.zeros(2, pixels, dtype=torch.bool)
    padding[1, 90:96] = True  # half of the last row of the first map
    out = build(64, 8, 3, 4)(query, value, shapes, reference, padding)
    record = golden('ddetr')['MSDeformAttn C=64 L=3 M=8 P=4 points']
    assert_golden(out, record)


@pytest.mark.parametrize(
    'sides, levels, ratio', [(2, 3, 1.0), (4, 1, 1.0), (4, 3, 0.5)]
)
def test_module_is_its_operator_between_projections(sides, levels, ratio):
    """Padding is never read; values may have half the width."""
    module = build(value_proj_ratio=ratio)
    query, value, reference = inputs(sides=sides, levels=levels)
    padding = torch.zeros(2, PIXELS, dtype=torch.bool)
    padding[1, 5:9] = padding[1, -1] = True
    values = torch.where(padding[..., None], 0, module.value_proj(value))
    expected = module.output_proj(
        fused_ms_deform_attn(
            values.view(2, PIXELS, 2, -1),
            SHAPES,
            reference,
            module.sampling_offsets(query).view(2, -1, 2, 3, 2, 2),
            module.attention_weights(query).view(2, -1, 2, 3, 2),
        )
    )
    assert_close(module(query, value, SHAPES, reference, padding), expected)
    other = value.masked_fill(padding[..., None], 1e6)
    assert_close(module(query, other, SHAPES, reference, padding), expected)
    without = module(query, value, SHAPES, reference)
    assert not torch.allclose(without[1], expected[1])
    module.backend = 'none'
    with pytest.raises(ValueError, match="'none'"):
        module(query, value, SHAPES, reference)


def test_it_starts_on_rays_with_equal_weights():
    """Heads look right, down, left and up; the points are 1, 2, 3 pixels away."""
    torch.manual_seed(0)
    module = MSDeformAttention(16, 4, 2, 3)
    offsets = module.sampling_offsets.bias.view(4, 2, 3, 2)
    rays = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    steps = torch.tensor([1.0, 2, 3])
    expected = (rays[:, None, None] * steps[:, None]).expand(4, 2, 3, 2)
    assert_close(offsets, expected, atol=1e-6, rtol=0)
    diagonal = MSDeformAttention(16, 8, 1, 1).sampling_offsets.bias.view(8, 2)[3]
    assert_close(diagonal, torch.tensor([-1.0, 1.0]), atol=1e-6, rtol=0)
    for layer in (module.sampling_offsets, module.attention_weights):
        assert not layer.weight.any()
    for layer in (module.attention_weights, module.value_proj, module.output_proj):
        assert not layer.bias.any()
    for layer in (module.value_proj, module.output_proj):
        bound = (6 / 32) ** 0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound


def test_locations_stay_in_float32_under_autocast():
    """Neighbors in a row of 512 pixels have one place in bfloat16."""
    module = MSDeformAttention(4, 2, 1, 1)
    torch.nn.init.zeros_(module.sampling_offsets.bias)
    for layer in (module.value_proj, module.output_proj):
        torch.nn.init.eye_(layer.weight)
    value = torch.tensor([1.0, -1.0]).repeat(256)[None, :, None].expand(1, -1, 4)
    x = (torch.arange(512) + 0.5) / 512
    reference = torch.stack([x, torch.full_like(x, 0.5)], -1)[None, :, None]
    with torch.autocast('cpu', torch.bfloat16):
        out = module(value, value, [(1, 512)], reference)
    assert out.dtype == torch.bfloat16
    assert_close(out.float(), value, atol=1e-2, rtol=0)


test_wrong_settings = refuses(
    build,
    (dict(num_heads=3), '8 channels do not split into 3 heads'),
    (dict(num_heads=8, value_proj_ratio=0.5), '4 channels do not split into 8'),
    (dict(num_levels=0), 'num_levels=0'),
)


def test_wrong_number_of_maps():
    query, value, reference = inputs()
    with pytest.raises(ValueError, match=r'3 maps.*\(4, 6\)'):
        build()(query, value, SHAPES[:2], reference)
