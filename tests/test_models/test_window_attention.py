"""Window attention: golden values, and dense attention under a mask of same windows."""

import pytest
import torch
from export_checks import OnnxSession
from golden import assert_golden, golden, hashed_input, hashed_parameters
from layer_checks import out_and_gradients, randn
from refusals import refuses
from torch.testing import assert_close

from mmattn.models.layers import WindowAttention


def build(window_size=7, shift=0, **kwargs):
    torch.manual_seed(0)
    layer = WindowAttention(8, 2, window_size, shift, **kwargs).double()
    torch.nn.init.normal_(layer.relative_position_bias_table)
    return layer


def window_of(side, window_size, shift):
    """The window of each pixel of a side: the first has `shift` pixels, if any."""
    if side <= window_size:
        return torch.zeros(side, dtype=torch.long)
    return (torch.arange(side) - shift) // window_size


def dense(layer, x):
    """Every pixel with every other: no padding, no windows, one mask."""
    B, H, W, C = x.shape
    M, w = layer.num_heads, layer.window_size
    y, x_ = torch.meshgrid(torch.arange(H), torch.arange(W), indexing='ij')
    y, x_ = y.flatten(), x_.flatten()
    rows, columns = window_of(H, w, layer.shift)[y], window_of(W, w, layer.shift)[x_]
    same = (rows[:, None] == rows) & (columns[:, None] == columns)
    dy, dx = ((i[:, None] - i + w - 1).where(same, 0) for i in (y, x_))
    bias = layer.relative_position_bias_table[dy * (2 * w - 1) + dx]  # (N, N, M)
    qkv = x.flatten(1, 2) @ layer.proj_qkv.weight.t() + layer.proj_qkv.bias
    q, k, v = qkv.view(B, H * W, 3, M, C // M).unbind(2)
    scores = torch.einsum('bqmc,bkmc->bqkm', q, k) / (C // M) ** 0.5 + bias
    scores = scores.masked_fill(~same[..., None], -torch.inf)
    out = torch.einsum('bqkm,bkmc->bqmc', scores.softmax(2), v).reshape(B, H, W, C)
    return out @ layer.proj_out.weight.t() + layer.proj_out.bias


@pytest.mark.parametrize(
    'record, shift',
    [
        ('DAT v1 L attention C=96 heads=3 win=7 map=14', 0),
        ('DAT v1 S attention C=96 heads=3 win=7 shift=4 map=14', 4),
    ],
    ids=['local', 'shifted'],
)
def test_official_values(record, shift):
    record = golden('dat1')[record]
    layer = WindowAttention(96, 3, 7, shift).double()
    layer.load_state_dict(hashed_parameters(layer.state_dict()))
    x = hashed_input(*record['shape']).permute(0, 2, 3, 1)
    assert_golden(layer(x).permute(0, 3, 1, 2), record)


@pytest.mark.parametrize('shift', [0, 3])
@pytest.mark.parametrize('grid', [(14, 21), (15, 13), (7, 7), (5, 16), (1, 1)], ids=str)
def test_windows_are_attention_among_their_pixels(grid, shift):
    """Padding does not count, and sides of one window or less are one window."""
    layer, x = build(7, shift), randn(2, *grid, 8)
    expected = out_and_gradients(layer, lambda x: dense(layer, x), x)
    assert_close(out_and_gradients(layer, layer, x), expected)


test_wrong_settings = refuses(
    WindowAttention,
    ((8, 3), '8 channels do not split into 3 heads'),
    ((8, 2, 7, 7), 'shift=7 and window_size=7'),
    ((8, 2, 7, -1), 'shift=-1'),
    ((8, 2, 0), 'window_size=0'),
)


@pytest.mark.slow
@torch.no_grad()
def test_exported_for_any_size():
    """An example of one window yields programs for shifted and padded windows."""
    layer = build(4, 3).float().eval().requires_grad_(False)
    x = randn(2, 4, 4, 8, dtype=torch.float32)
    sides = dict.fromkeys((0, 1, 2), torch.export.Dim.DYNAMIC)
    program = torch.export.export(layer, (x,), dynamic_shapes=(sides,))
    session = OnnxSession(program, (x,))
    program = program.module()
    for grid in ((4, 4), (3, 9), (5, 2), (8, 12), (11, 7)):
        x = randn(3, *grid, 8, dtype=torch.float32)
        for found in (program(x), *session(x)):
            assert_close(found, layer(x), rtol=1e-5, atol=1e-5)
