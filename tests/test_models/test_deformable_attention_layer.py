"""The layer around `deformable_attention`: golden values, a rewrite, its edges."""

import pytest
import torch
from dat_official import centers, deformed
from golden import EXACT, SINGLE, assert_golden, golden, hashed_input, hashed_parameters
from refusals import refuses
from torch.testing import assert_close

from mmattn.models.layers import DeformableAttention
from mmattn.models.layers.deformable_attention import sample_by_kernel, sample_map

DAT, DAT_PLUS_PLUS = 1, 2
GOLDEN = [
    pytest.param(
        'dat1',
        'DAT v1 D-block attention H=14 C=384 heads=12 groups=3',
        dict(num_heads=12, num_groups=3, kernel_size=5, version=DAT),
        SINGLE,
        id='dat-stage-3',
    ),
    pytest.param(
        'dat2',
        'DAT++ D attention H=56 C=64 heads=2 groups=1 stride=8 k=9',
        dict(num_heads=2, num_groups=1, kernel_size=9, stride=8, version=DAT_PLUS_PLUS),
        EXACT,
        id='dat++-stage-1',
    ),
    pytest.param(
        'dat2',
        'DAT++ D attention H=14 C=256 heads=8 groups=4 stride=2 k=5',
        dict(num_heads=8, num_groups=4, kernel_size=5, stride=2, version=DAT_PLUS_PLUS),
        EXACT,
        id='dat++-stage-3',
    ),
]


def build(embed_dims=12, num_heads=6, num_groups=3, table_grid=(7, 7), **kwargs):
    """In float64, with offsets of several pixels and a bias that counts."""
    torch.manual_seed(0)
    kwargs = dict(kernel_size=3, version=DAT) | kwargs
    layer = DeformableAttention(
        embed_dims, num_heads, num_groups, table_grid, **kwargs
    ).double()
    torch.nn.init.normal_(layer.conv_offset[3].weight)
    torch.nn.init.normal_(layer.rpe_table)
    return layer


def random(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize('file, record, kwargs, tolerance', GOLDEN)
def test_official_values(file, record, kwargs, tolerance):
    record = golden(file)[record]
    _, C, H, W = record['input']
    layer = build(C, table_grid=(H, W), **kwargs)
    official = {
        name.replace('conv_offset.1.', 'conv_offset.1.norm.'): value
        for name, value in layer.state_dict().items()
    }
    layer.load_state_dict(
        {
            name.replace('.norm.', '.'): value
            for name, value in hashed_parameters(official).items()
        }
    )
    x = hashed_input(*record['input']).permute(0, 2, 3, 1)
    shape = record['pos']['shape']  # (B, G, Hk, Wk, 2), the last of (y, x)
    y, x_ref = (layer.reference_points(side, x) for side in shape[2:4])
    reference = torch.stack(torch.meshgrid(y, x_ref, indexing='ij'), -1)
    assert_golden(reference.expand(shape), record['ref'])
    positions = layer.sampled_positions(x).flip(-1).view(shape)
    assert_golden(positions, record['pos'], tolerance)
    assert_golden(layer(x).permute(0, 3, 1, 2), record['y'], tolerance)


@pytest.mark.parametrize('version', [DAT, DAT_PLUS_PLUS], ids=['dat', 'dat++'])
@pytest.mark.parametrize(
    'grid, kernel_size, stride', [((5, 9), 3, 1), ((13, 10), 9, 4)], ids=str
)
def test_layer_is_its_definition(version, grid, kernel_size, stride):
    """On other maps than the table's, and where the stride does not divide a side."""
    layer = build(version=version, kernel_size=kernel_size, stride=stride)
    x = random(2, 12, *grid)
    params = {
        n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()
    }
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    out = layer(inputs[0].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    expected, pos = deformed(params, inputs[1], 6, 3, version, stride)
    assert_close(out, expected)
    positions = layer.sampled_positions(x.permute(0, 2, 3, 1))
    assert_close(positions, pos.flip(-1))
    for result in (out, expected):
        (result * random(*result.shape)).sum().backward()
    assert_close(inputs[0].grad, inputs[1].grad)
    actual = {name: p.grad for name, p in layer.named_parameters()}
    assert_close(actual, {name: p.grad for name, p in params.items()})


@pytest.mark.parametrize('version', [DAT, DAT_PLUS_PLUS], ids=['dat', 'dat++'])
def test_the_only_key_of_a_side_lies_in_its_middle(version):
    """Also where the kernel, equal to its stride, is larger than the map."""
    layer = build(version=version, kernel_size=4, stride=4)
    torch.nn.init.zeros_(layer.conv_offset[3].weight)
    for grid in ((1, 1), (1, 6), (3, 2)):
        x = random(2, *grid, 12)
        positions = layer.sampled_positions(x)
        assert positions.shape == (2, 3, 1, 2)
        assert_close(positions, torch.zeros_like(positions))
        assert layer(x).isfinite().all()


def test_offsets_are_bounded_as_each_version_says():
    x = random(2, 5, 8, 12)
    dat, plus_plus = (build(version=version) for version in (DAT, DAT_PLUS_PLUS))
    for layer in (dat, plus_plus):
        torch.nn.init.normal_(layer.conv_offset[3].weight, std=100)
    sides = torch.tensor([8.0, 5.0]).double()
    cells = (centers(side, False) for side in (5, 8))
    references = torch.stack(torch.meshgrid(*cells, indexing='ij'), -1).flip(-1)
    steps = (dat.sampled_positions(x) - references.flatten(0, 1)) * sides
    assert_close(steps.abs().max().item(), 2.0)
    assert plus_plus.sampled_positions(x).abs().max() == 1


def test_samples_at_pixels_are_the_pixels():
    """Each group has points of its own; what lies outside of the map is zero."""
    x = random(2, 3, 5, 8)
    pixels = torch.tensor([[[0, 0], [4, 2], [-1, 1]], [[3, 1], [4, 0], [9, 9]]])  # x, y
    positions = 2 * pixels.double() / torch.tensor([4, 2]) - 1
    out = sample_map(x, positions.expand(2, 2, 3, 2))
    zero = torch.zeros(2, 4).double()
    first = torch.stack([x[:, 0, 0, :4], x[:, 2, 4, :4], zero], 1)
    second = torch.stack([x[:, 1, 3, 4:], x[:, 0, 4, 4:], zero], 1)
    assert_close(out, torch.cat([first, second], -1))


@pytest.mark.parametrize('width', [3, 5])
def test_the_kernel_of_gpus_samples_the_same(width):
    x, positions = random(2, 3, width, 8).requires_grad_(), 1.5 * random(2, 4, 6, 2)
    inputs = x, positions.requires_grad_()
    outs = [sample(*inputs) for sample in (sample_map, sample_by_kernel)]
    assert_close(*outs)
    grad = random(2, 6, 8)
    assert_close(*(torch.autograd.grad(out, inputs, grad) for out in outs))


@pytest.mark.parametrize('version', [DAT, DAT_PLUS_PLUS])
def test_forward_mode(version):
    layer, x = build(version=version), random(2, 5, 8, 12)
    tangent = x.cos()
    expected = (layer(x + 1e-6 * tangent) - layer(x - 1e-6 * tangent)) / 2e-6
    actual = torch.func.jvp(layer, (x,), (tangent,))[1]
    assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_positions_stay_in_float32_under_autocast():
    """In bfloat16 a point of a map of 84 columns is a sixth of a pixel away."""
    layer = build(version=DAT_PLUS_PLUS).float()
    torch.nn.init.zeros_(layer.conv_offset[3].weight)
    x = random(1, 9, 84, 12).float()
    expected = layer.sampled_positions(x)
    with torch.autocast('cpu', torch.bfloat16):
        assert_close(layer.sampled_positions(x), expected)
        assert layer(x).isfinite().all()


test_wrong_settings = refuses(
    build,
    (dict(num_heads=5), '12 channels do not split into 5 heads'),
    (dict(num_groups=4), '6 heads do not split into 4 groups'),
    (dict(table_grid=(7,)), r'\(7,\)'),
    (dict(table_grid=(7, 0)), r'\(7, 0\)'),
    (dict(stride=4), 'stride=4 and kernel_size=3'),
    (dict(stride=0), 'stride=0'),
    (dict(version=3), '3'),
)
