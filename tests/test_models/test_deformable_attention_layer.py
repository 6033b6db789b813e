"""The layer around `deformable_attention`: golden values, a rewrite, its edges."""

import pytest
import torch
from dat_official import deformed
from golden import EXACT, SINGLE, assert_golden, golden, hashed_input, hashed_parameters
from layer_checks import out_and_gradients, randn
from refusals import refuses
from torch.testing import assert_close

from mmattn.models.layers import DeformableAttention
from mmattn.models.layers.deformable_attention import sample_by_kernel, sample_map

DAT, DAT_PLUS_PLUS = 1, 2
versions = pytest.mark.parametrize('version', [DAT, DAT_PLUS_PLUS])
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


@pytest.mark.parametrize('file, record, kwargs, tolerance', GOLDEN)
def test_official_values(file, record, kwargs, tolerance):
    record = golden(file)[record]
    _, C, H, W = record['input']
    layer = build(C, table_grid=(H, W), **kwargs)
    official = {
        name.replace('conv_offset.1.', 'conv_offset.1.norm.'): value
        for name, value in layer.state_dict().items()
    }
    values = hashed_parameters(official).items()
    layer.load_state_dict({name.replace('.norm.', '.'): x for name, x in values})
    x = hashed_input(*record['input']).permute(0, 2, 3, 1)
    shape = record['pos']['shape']  # (B, G, Hk, Wk, 2), the last of (y, x)
    y, x_ref = (layer.reference_points(side, x) for side in shape[2:4])
    reference = torch.stack(torch.meshgrid(y, x_ref, indexing='ij'), -1)
    assert_golden(reference.expand(shape), record['ref'])
    positions = layer.sampled_positions(x).flip(-1).view(shape)
    assert_golden(positions, record['pos'], tolerance)
    assert_golden(layer(x).permute(0, 3, 1, 2), record['y'], tolerance)


@versions
@pytest.mark.parametrize(
    'grid, kernel_size, stride', [((5, 9), 3, 1), ((13, 10), 9, 4)], ids=str
)
def test_layer_is_its_definition(version, grid, kernel_size, stride):
    """On other maps than the table's, and where the stride does not divide a side."""
    layer = build(version=version, kernel_size=kernel_size, stride=stride)
    x = randn(2, *grid, 12)

    def definition(x):
        maps, settings = x.permute(0, 3, 1, 2), (6, 3, version, stride)
        return deformed(dict(layer.named_parameters()), maps, *settings)

    positions = definition(x)[1].flip(-1)
    assert_close(layer.sampled_positions(x), positions)
    expected = out_and_gradients(
        layer, lambda x: definition(x)[0].permute(0, 2, 3, 1), x
    )
    assert_close(out_and_gradients(layer, layer, x), expected)


@versions
def test_the_only_key_of_a_side_lies_in_its_middle(version):
    """Also where the kernel, equal to its stride, is larger than the map."""
    layer = build(version=version, kernel_size=4, stride=4)
    torch.nn.init.zeros_(layer.conv_offset[3].weight)
    for grid in ((1, 1), (1, 6), (3, 2)):
        x = randn(2, *grid, 12)
        positions = layer.sampled_positions(x)
        assert positions.shape == (2, 3, 1, 2)
        assert_close(positions, torch.zeros_like(positions))
        assert layer(x).isfinite().all()


@pytest.mark.parametrize('width', [3, 5])
def test_the_kernel_of_gpus_samples_the_same(width):
    x, positions = randn(2, 3, width, 8).requires_grad_(), 1.5 * randn(2, 4, 6, 2)
    inputs = x, positions.requires_grad_()
    outs = [sample(*inputs) for sample in (sample_map, sample_by_kernel)]
    assert_close(*outs)
    grad = randn(2, 6, 8)
    assert_close(*(torch.autograd.grad(out, inputs, grad) for out in outs))


@versions
def test_forward_mode(version):
    layer, x = build(version=version), randn(2, 5, 8, 12)
    tangent = x.cos()
    expected = (layer(x + 1e-6 * tangent) - layer(x - 1e-6 * tangent)) / 2e-6
    actual = torch.func.jvp(layer, (x,), (tangent,))[1]
    assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_positions_stay_in_float32_under_autocast():
    """In bfloat16 a point of a map of 84 columns is a sixth of a pixel away."""
    layer = build(version=DAT_PLUS_PLUS).float()
    torch.nn.init.zeros_(layer.conv_offset[3].weight)
    x = randn(1, 9, 84, 12).float()
    expected = layer.sampled_positions(x)
    with torch.autocast('cpu', torch.bfloat16):
        assert_close(layer.sampled_positions(x), expected)
        assert layer(x).isfinite().all()


test_wrong_settings = refuses(
    build,
    (dict(num_heads=5), '12 channels do not split into 5 heads'),
    (dict(num_groups=4), '6 heads do not split into 4 groups'),
    (dict(table_grid=(7, 0)), r'\(7, 0\)'),
    (dict(stride=4), 'stride=4 and kernel_size=3'),
    (dict(version=3), '3'),
)
