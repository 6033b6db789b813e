"""The module around `fused_ms_deform_attn`: golden values, a rewrite, its edges."""

import pytest
import torch
from golden import assert_golden, golden, hashed, hashed_parameters
from torch.testing import assert_close

from mmattn.models.layers import MSDeformAttention

SHAPES = [(4, 6), (3, 2), (1, 1)]
PIXELS = sum(H * W for H, W in SHAPES)
REWRITE = dict(rtol=1e-12, atol=1e-12)


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


def linear(p, name, x):
    return x @ p[f'{name}.weight'].t() + p[f'{name}.bias']


def bilinear(grid, x, y):
    """Samples (Q, D) of `grid` (H, W, D) at pixels x, y (Q,); 0 is a pixel's center."""
    H, W, _ = grid.shape
    out = 0
    for row in (y.floor(), y.floor() + 1):
        for column in (x.floor(), x.floor() + 1):
            weight = (1 - (y - row).abs()) * (1 - (x - column).abs())
            inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
            i, j = row.clamp(0, H - 1).long(), column.clamp(0, W - 1).long()
            out = out + (weight * inside)[:, None] * grid[i, j]
    return out


def rewritten(p, query, value, shapes, reference, padding, heads):
    """Attend in one image, one head and one point at a time.

    Queries are (Q, C), values (S, C), reference (Q, L, 2 or 4), padding (S,).
    """
    levels = len(shapes)
    value = linear(p, 'value_proj', value)
    if padding is not None:
        value = torch.where(padding[:, None], 0, value)
    offsets = linear(p, 'sampling_offsets', query)
    offsets = offsets.view(len(query), heads, levels, -1, 2)
    points = offsets.shape[3]
    weights = linear(p, 'attention_weights', query).view(len(query), heads, -1)
    weights = weights.exp() / weights.exp().sum(-1, keepdim=True)
    width = value.shape[1] // heads
    outs = []
    for head in range(heads):
        out, start = 0, 0
        for level, (H, W) in enumerate(shapes):
            grid = value[start : start + H * W, head * width : (head + 1) * width]
            start += H * W
            for point in range(points):
                x, y = reference[:, level, :2].unbind(-1)
                dx, dy = offsets[:, head, level, point].unbind(-1)
                if reference.shape[-1] == 4:
                    w, h = reference[:, level, 2:].unbind(-1)
                    x, y = x + dx / points * w / 2, y + dy / points * h / 2
                    x, y = x * W, y * H
                else:
                    x, y = x * W + dx, y * H + dy
                samples = bilinear(grid.view(H, W, width), x - 0.5, y - 0.5)
                out = out + weights[:, head, level * points + point, None] * samples
        outs.append(out)
    return linear(p, 'output_proj', torch.cat(outs, -1))


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
    'sides, levels, ratio', [(2, 3, 1.0), (4, 1, 1.0), (2, 1, 0.5), (4, 3, 0.5)]
)
def test_module_is_its_definition(sides, levels, ratio):
    """Padding, references for one level or each, values of half the width."""
    module = build(value_proj_ratio=ratio)
    params = {
        name: p.detach().clone().requires_grad_()
        for name, p in module.named_parameters()
    }
    padding = torch.zeros(2, PIXELS, dtype=torch.bool)
    padding[1, 5:9] = padding[1, -1] = True
    tensors = [
        [x.clone().requires_grad_() for x in inputs(sides=sides, levels=levels)]
        for _ in range(2)
    ]
    query, value, reference = tensors[0]
    out = module(query, value, SHAPES, reference, padding)
    query, value, reference = tensors[1]
    expected = torch.stack(
        [
            rewritten(
                params,
                query[b],
                value[b],
                SHAPES,
                reference[b].expand(-1, 3, -1),
                padding[b],
                2,
            )
            for b in range(2)
        ]
    )
    assert_close(out, expected, **REWRITE)
    for result in (out, expected):
        (result * hashed('probe', result.shape)).sum().backward()
    for mine, other in zip(*tensors, strict=True):
        assert_close(mine.grad, other.grad, **REWRITE)
    for name, parameter in module.named_parameters():
        assert_close(parameter.grad, params[name].grad, **REWRITE)


def test_padding_is_never_read():
    module, (query, value, reference) = build(), inputs()
    padding = torch.zeros(2, PIXELS, dtype=torch.bool)
    padding[0, 3:11] = True
    out = module(query, value, SHAPES, reference, padding)
    other = value.masked_fill(padding[..., None], 1e6)
    assert_close(module(query, other, SHAPES, reference, padding), out)
    assert not torch.allclose(module(query, value, SHAPES, reference)[0], out[0])
    assert_close(module(query, value, SHAPES, reference)[1], out[1])


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


def test_backend_is_the_operators():
    query, value, reference = inputs()
    with pytest.raises(ValueError, match="'none'"):
        build(backend='none')(query, value, SHAPES, reference)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(num_heads=3), '8 channels do not split into 3 heads'),
        (dict(num_heads=8, value_proj_ratio=0.5), '4 channels do not split into 8'),
        (dict(num_heads=0), 'num_heads=0'),
        (dict(num_levels=0), 'num_levels=0'),
        (dict(num_points=0), 'num_points=0'),
        (dict(value_proj_ratio=0.0), 'value_proj_ratio=0.0'),
    ],
    ids=str,
)
def test_wrong_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_wrong_inputs():
    query, value, reference = inputs()
    module = build()
    with pytest.raises(ValueError, match=r'3 maps.*\(4, 6\)'):
        module(query, value, SHAPES[:2], reference)
    with pytest.raises(ValueError, match='30 pixels'):
        module(query, value[:, 1:], SHAPES, reference)
    with pytest.raises(ValueError, match='reference_points'):
        module(query, value, SHAPES, reference[:, :3])
