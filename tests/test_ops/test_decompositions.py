"""Every operator decomposes into operators of PyTorch, and runs in ONNX Runtime."""

from itertools import product

import pytest
import torch
from export_checks import OnnxSession, decomposed, own_operators
from torch import nn

import mmattn.export
from mmattn.ops import masked_attention, neighborhood_attention
from mmattn.ops.ms_deform_attn.decomposition import ms_deform_attn_decomposition
from mmattn.ops.ms_deform_attn.reference import ms_deform_attn_reference
from tools.benchmark.inputs import Draw, make_ms_deform_inputs
from tools.benchmark.real_shapes import OPERATORS, small_calls
from tools.benchmark.tolerances import assert_close

CALLS = [call for operator in OPERATORS for call in small_calls(operator)]
every_call = pytest.mark.parametrize(
    'call',
    [  # two of the grids are others to Triton alone
        pytest.param(x, marks=pytest.mark.slow if 'grid (5, ' in str(x) else ())
        for x in CALLS
    ],
    ids=lambda call: call.operator,
)


class Graph(nn.Module):
    """Call an operator with tensors of the sizes of a small call, and several heads."""

    def __init__(self, call):
        super().__init__()
        self.call, self.inputs = call, call.make_tensors(B=2, M=3)
        self.tensors = tuple(x for x in self.inputs if x is not None)

    def forward(self, *tensors, backend=None):
        tensors = iter(tensors)
        inputs = [None if x is None else next(tensors) for x in self.inputs]
        return self.call.run_on(backend)(*inputs)

    def expected(self):
        return self(*self.tensors, backend='reference')


@every_call
def test_decomposed_operator(call):
    call = Graph(call)
    program = torch.export.export(call, call.tensors)
    assert len(own_operators(program)) == 1
    program = program.run_decompositions(mmattn.export.decompositions())
    assert not own_operators(program)
    assert_close('out', call.expected(), program.module()(*call.tensors))


@pytest.mark.slow
@every_call
def test_operator_in_onnx_runtime(call):
    call = Graph(call)
    (out,) = OnnxSession(call, call.tensors)(*call.tensors)
    assert_close('out', call.expected(), out)


@pytest.mark.parametrize('fused, boxes', [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
def test_gathered_pixels(fused, boxes, dtype):
    """Compare with the definition, also far outside the map and on its borders."""
    shapes = [(7, 5), (4, 3), (1, 1)]
    tensors = make_ms_deform_inputs(
        shapes=shapes, fused=fused, boxes=boxes, dtype=dtype, B=2
    )
    points = tensors[1]
    places = torch.tensor([0, 1, -9, 9, 1e30, torch.inf, -torch.inf, torch.nan])
    points[0, : len(places), 0, :, 0, 0] = places[:, None].to(points)
    points[1, : len(places), 1, :, 1, 1] = places[:, None].to(points)
    sides = [side for shape in shapes for side in shape]
    expected = ms_deform_attn_reference(*tensors, shapes=sides)
    out = ms_deform_attn_decomposition(*tensors, shapes=sides)
    assert_close('out', expected, out)


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


class MaskedCall(nn.Module):
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


class WindowCall(nn.Module):
    """Attend with q, k and v as one map, shape (B, H, W, 3, M, D)."""

    def __init__(self):
        super().__init__()
        self.rpb = Draw()(3, 13, 13)

    def forward(self, x, backend=None):
        return neighborhood_attention(*x.unbind(3), self.rpb, backend=backend)


def make_map(grid, B=2, scale=1):
    return scale * Draw()(B, *grid, 3, 3, 8)


def check_sizes(run, call, example, maps):
    """Compare a graph that `run` makes of an example with the definition."""
    sizes = [dict.fromkeys((0, 1, 2), torch.export.Dim.DYNAMIC)]
    program = run(call, (make_map(example),), sizes)
    for x in maps:
        (out,) = program(x) if run is OnnxSession else (program(x),)
        assert_close(f'{tuple(x.shape)}', call(x, backend='reference'), out)


@pytest.mark.slow
@pytest.mark.parametrize('run', [decomposed, OnnxSession])
@pytest.mark.parametrize('settings', SETTINGS.values(), ids=SETTINGS)
def test_hard_masks_for_sizes_that_change(settings, run):
    """Scores of some hundreds overflow exp in float32."""
    scales = (1, 10) if run is decomposed else (1,)
    maps = [make_map(grid, 3, scale) for grid, scale in product(GRIDS, scales)]
    check_sizes(run, MaskedCall(**settings), (13, 22), maps)


@pytest.mark.slow
def test_windows_for_sizes_that_change():
    """The example has more pixels than the stencil's kernels serve, others fewer."""
    maps = [make_map(grid, 3) for grid in ((8, 13), (14, 15), (50, 60))]
    check_sizes(decomposed, WindowCall(), (47, 53), maps)


@pytest.mark.parametrize(  # the slow test above has all settings
    'name', ['zero, bias, special', 'neg_inf, 5x5, bias, special']
)
def test_hard_masks_of_one_size(name):
    call, x = MaskedCall(**SETTINGS[name]), make_map((17, 23))
    assert_close('out', call(x, backend='reference'), decomposed(call, (x,))(x))


def test_hard_masks_hold_no_dense_map():
    H, W = 20, 30
    program = decomposed(MaskedCall(), (make_map((H, W), B=1),))
    for node in program.graph.nodes:
        if isinstance(node.meta.get('val'), torch.Tensor):
            assert node.meta['val'].numel() < (H * W) ** 2 / 2, node
