"""How learned tables are resized: each against the formula of its interpolation.

Positions of ViT, MaiT, MaskedCaiT and LiSANet: bicubic between pixels' centres, as
timm without antialiasing. Positions of PVT: bilinear between centres, as in
https://github.com/whai362/PVT. Tables of offsets of H-MaiT and DAT: bicubic with fixed
corners, as an offset of 0 stays in the middle and the largest offset at the border;
those of LiSA's ablations: bicubic between centres.
"""

from itertools import product
from math import floor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mmattn.models import DAT, PVT, DATPlusPlus, HMaiT, LiSANet, MaiT, MaskedCaiT, ViT

PLAIN = dict(embed_dims=(32,), depths=(1,), mlp_ratios=(2,), conv_stages=0, patterns=2)
VIT = dict(embed_dims=32, depth=1, num_heads=2)
FOUR = dict(embed_dims=(8, 8, 8, 8), depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))
PVTS = FOUR | dict(mlp_ratios=(1, 1, 1, 1), sr_ratios=(8, 4, 2, 1))
HMAIT = FOUR | dict(masked_heads=(0, 0, 0, 0))
DATS = FOUR | dict(num_groups=(1, 1, 1, 1))
BLOCK = 'layers.0.blocks.0.attn'
CASES = {  # class, options, table, kernel, number of special tokens
    'vit': (ViT, dict(arch=VIT), 'pos_embed', 'cubic', 0),
    'mait': (MaiT, dict(arch=VIT), 'pos_embed', 'cubic', 1),
    'mait-distilled': (MaiT, dict(arch=VIT, distilled=True), 'pos_embed', 'cubic', 2),
    'cait': (MaskedCaiT, dict(arch=VIT), 'pos_embed', 'cubic', 0),
    'lisanet': (LiSANet, dict(arch=PLAIN), 'pos_embed', 'cubic', 0),
    'hmait': (
        HMaiT,
        dict(arch=HMAIT, position='absolute'),
        'pos_embed',
        'cubic',
        0,
    ),
    'pvt': (PVT, dict(arch=PVTS), 'layers.0.pos_embed', 'linear', 0),
    'pvt-token': (
        PVT,
        dict(arch=PVTS, out_type='cls_token'),
        'layers.3.pos_embed',
        'linear',
        1,
    ),
}
TABLES = {  # of offsets: class, options, table, whether corners are fixed
    'hmait': (
        HMaiT,
        dict(arch=HMAIT, position='full'),
        f'{BLOCK}.relative_position_bias_table',
        True,
    ),
    'dat': (DAT, dict(arch=DATS), f'{BLOCK}.rpe_table', True),
    'dat++': (DATPlusPlus, dict(arch=DATS), 'layers.3.blocks.0.attn.rpe_table', True),
    'ablation': (
        LiSANet,
        dict(arch=PLAIN, mixer='self_attention_rpe'),
        'blocks.0.0.mixer.table',
        False,
    ),
}


def cubic(x):
    """Return Keys' kernel at x, with the slope of -0.75 that PyTorch has."""
    x, a = abs(x), -0.75
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def linear(x):
    return max(0.0, 1 - abs(x))


def interpolation(old, new, kernel, corners):
    """Return a matrix (new, old); beyond a border lies the border's own value."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for i in range(new):
        place = (i + 0.5) * old / new - 0.5
        if corners:
            place = i * (old - 1) / (new - 1) if new > 1 else 0.0
        if kernel is linear:
            place = max(place, 0.0)
        for tap in range(floor(place) - 1, floor(place) + 3):
            matrix[i, min(max(tap, 0), old - 1)] += kernel(place - tap)
    return matrix


def resized(table, shape, kernel, corners):
    """Resize (..., rows, columns) to (..., *shape)."""
    rows, columns = (
        interpolation(old, new, kernel, corners)
        for old, new in zip(table.shape[-2:], shape, strict=True)
    )
    return rows @ table @ columns.t()


def build(cls, options, side):
    torch.manual_seed(0)
    model = cls(img_size=side, **options).double()
    for param in model.parameters():
        nn.init.normal_(param)
    return model


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
@pytest.mark.parametrize('size', [(96, 160), (224, 32)], ids=str)
def test_positions(case, size):
    cls, options, name, kind, special = case
    source, model = (build(cls, options, side) for side in (128, size))
    model.load_state_dict(source.state_dict())
    table, loaded = source.get_parameter(name)[0], model.get_parameter(name)[0]
    assert_close(loaded[:special], table[:special], rtol=0, atol=0)
    table, loaded = table[special:].t(), loaded[special:].t()  # (C, N)
    side, ratio = int(table.shape[1] ** 0.5), 128 / table.shape[1] ** 0.5
    grid = [int(length / ratio) for length in size]
    kernel = dict(cubic=cubic, linear=linear)[kind]
    expected = resized(table.unflatten(1, (side, side)), grid, kernel, False)
    assert_close(loaded, expected.flatten(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize('case', TABLES.values(), ids=TABLES)
@pytest.mark.parametrize('size', [(96, 160), (224, 64)], ids=str)
def test_tables_of_offsets(case, size):
    cls, options, name, corners = case
    source, model = (build(cls, options, side) for side in (128, size))
    model.load_state_dict(source.state_dict())
    table, loaded = source.get_parameter(name), model.get_parameter(name)
    if table.dim() == 2:  # (rows * columns, heads)
        table, loaded = table.t(), loaded.t()
        side = int(table.shape[1] ** 0.5)
        table = table.unflatten(1, (side, side))
    stride = 128 / ((table.shape[-1] + 1) / 2)
    shape = [2 * int(length / stride) - 1 for length in size]
    expected = resized(table, shape, cubic, corners)
    if not corners:  # through float32
        assert_close(loaded.view_as(expected), expected, rtol=0, atol=1e-5)
        return
    assert_close(loaded.reshape(expected.shape), expected, rtol=0, atol=1e-12)


def test_interpolation_keeps_constants():
    for kernel, corners in product((cubic, linear), (True, False)):
        matrix = interpolation(5, 8, kernel, corners)
        assert_close(matrix.sum(1), torch.ones(8).double())
