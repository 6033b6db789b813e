"""Hard masks in exported graphs: every setting, sizes that change, and no N x N map."""

import pytest
import torch
from export_checks import OnnxSession, decomposed
from torch import nn

from mmattn.ops import masked_attention
from tools.benchmark.inputs import Draw
from tools.benchmark.tolerances import assert_close

SETTINGS = {
    'zero': dict(),
    'zero, bias, special': dict(bias=True, num_special=2),
    'zero, 5x5': dict(kernel_size=5),
    'neg_inf': dict(mask_fill='neg_inf'),
    'neg_inf, 5x5, bias, special': dict(
        mask_fill='neg_inf', kernel_size=5, bias=True, num_special=1
    ),
}
# All keys of the smallest map are in each tile. torch.export takes sizes of one tile,
# and so of fewer than 5 pixels, for constants.
GRIDS = (5, 5), (5, 9), (8, 12), (17, 23)


class Call(nn.Module):
    """Attend with the patches of a map, and with special tokens of its own."""

    def __init__(self, num_special=0, bias=False, kernel_size=3, mask_fill='zero'):
        super().__init__()
        draw = Draw()
        self.special = draw(1, num_special, 3, 3, 8)
        self.settings = dict(
            num_special=num_special,
            bias=draw(3, kernel_size, kernel_size) if bias else None,
            kernel_size=kernel_size,
            mask_fill=mask_fill,
        )

    def forward(self, x, backend=None):
        """Take q, k and v as one tensor, shape (B, H, W, 3, M, D)."""
        tokens = [self.special.expand(x.shape[0], -1, -1, -1, -1), x.flatten(1, 2)]
        q, k, v = torch.cat(tokens, 1).unbind(2)
        grid = tuple(x.shape[1:3])
        return masked_attention(q, k, v, grid, backend=backend, **self.settings)


def make_map(grid, B=2, scale=1):
    return scale * Draw()(B, *grid, 3, 3, 8)


@pytest.mark.slow
@pytest.mark.parametrize('settings', SETTINGS.values(), ids=SETTINGS)
def test_decomposition_for_sizes_that_change(settings):
    call = Call(**settings)
    sizes = [dict.fromkeys((0, 1, 2), torch.export.Dim.DYNAMIC)]
    program = decomposed(call, (make_map((13, 22)),), sizes)
    for grid in GRIDS:
        # Scores of some hundreds overflow exp in float32.
        for scale in (1, 10):
            x = make_map(grid, B=3, scale=scale)
            assert_close(f'{grid}', call(x, backend='reference'), program(x))


@pytest.mark.parametrize('settings', SETTINGS.values(), ids=SETTINGS)
def test_decomposition_of_one_size(settings):
    call, x = Call(**settings), make_map((17, 23))
    out = decomposed(call, (x,))(x)
    assert_close('out', call(x, backend='reference'), out)


def test_hard_masks_hold_no_dense_map():
    H, W = 20, 30
    program = decomposed(Call(), (make_map((H, W), B=1),))
    for node in program.graph.nodes:
        if isinstance(node.meta.get('val'), torch.Tensor):
            assert node.meta['val'].numel() < (H * W) ** 2 / 2, node


@pytest.mark.slow
@pytest.mark.parametrize('settings', SETTINGS.values(), ids=SETTINGS)
def test_onnx_file_for_sizes_that_change(settings):
    call = Call(**settings)
    sizes = [dict.fromkeys((0, 1, 2), torch.export.Dim.DYNAMIC)]
    session = OnnxSession(call, (make_map((13, 22)),), sizes)
    for grid in GRIDS:
        x = make_map(grid, B=3)
        (out,) = session(x)
        assert_close(f'{grid}', call(x, backend='reference'), out)
