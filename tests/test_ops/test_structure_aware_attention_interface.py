"""Structure-aware attention's contract: errors, backends, compilation and export."""

import doctest
import importlib

import pytest
import torch

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import rfft_grid
from tools.benchmark.inputs import make_structure_aware_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads


def with_half_spectra(inputs, grid):
    *qkv, w_a, w_b, bias = inputs
    return [*qkv, rfft_grid(w_a, grid), rfft_grid(w_b, grid), bias]


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (0, (2, 35, 24), r'\(2, 35, 24\)'),
        (1, (2, 34, 3, 8), r'\(2, 34, 3, 8\)'),
        (2, (2, 35, 3, 7), r'\(2, 35, 3, 7\)'),
        (3, (8, 4, 5, 7), r'\(8, 4, 5, 7\)'),
        (3, (3, 8, 4, 7, 5), r'\(3, 8, 4, 7, 5\)'),
        (3, (8, 3, 7, 5), r'\(8, 3, 7, 5\)'),
        (4, (4, 7, 6), r'35 tokens, got \(7, 6\)'),
        (4, (4,), r'35 tokens, got \(\)'),
        (4, (4, 1, 7, 5, 1), r'35 tokens, got \(1, 7, 5, 1\)'),
        (5, (4, 8), r'\(4, 8\)'),
        (5, (8,), r'\(8,\)'),
    ],
)
def test_wrong_shape(position, shape, message):
    inputs = make_structure_aware_inputs()
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        structure_aware_attention(*inputs)


@pytest.mark.parametrize(
    'shape, message',
    [
        (dict(grid=(0, 5)), 'N=0'),
        (dict(M=0), 'M=0'),
        (dict(D=0), 'D=0'),
        (dict(K=0), r'\(0, 7, 5\)'),
    ],
)
def test_empty_axis(shape, message):
    shape = dict(grid=(7, 5)) | shape
    tokens = dict(shape, grid=(1,)) if 0 in shape['grid'] else shape
    inputs = make_structure_aware_inputs(**tokens)
    if tokens is not shape:
        inputs[:3] = [x[:, :0] for x in inputs[:3]]
    with pytest.raises(ValueError, match=message):
        structure_aware_attention(*inputs)


def test_wrong_dtype_and_device():
    q, k, v, w_a, w_b, bias = make_structure_aware_inputs()
    with pytest.raises(ValueError, match='float16'):
        structure_aware_attention(q.half(), k, v, w_a, w_b, bias)
    with pytest.raises(ValueError, match='int64'):
        structure_aware_attention(q.long(), k.long(), v.long(), w_a, w_b, bias)
    with pytest.raises(ValueError, match="one device.*'cpu', 'meta'"):
        structure_aware_attention(q, k, v, w_a, w_b, bias.to('meta'))


def test_wrong_half_spectra():
    grid = (7, 5)
    inputs = make_structure_aware_inputs(grid=grid)
    q, k, v, w_a, w_b, bias = halves = with_half_spectra(inputs, grid)
    with pytest.raises(ValueError, match='`grid`, got None'):
        structure_aware_attention(*halves)
    with pytest.raises(ValueError, match='complex64 and float32'):
        structure_aware_attention(q, k, v, w_a, inputs[4], bias, grid=grid)
    with pytest.raises(ValueError, match=r'35 tokens, got \(7, 6\)'):
        structure_aware_attention(*halves, grid=(7, 6))
    with pytest.raises(ValueError, match=r'\(8, 4, 5, 4\).*got.*\(8, 4, 7, 3\)'):
        structure_aware_attention(*halves, grid=(5, 7))
    with pytest.raises(ValueError, match=r'\(8, 4, 7, 5\).*\(5, 7\)|\(5, 7\).*'):
        structure_aware_attention(*inputs, grid=(5, 7))


def test_grid_may_be_given_with_kernels():
    inputs = make_structure_aware_inputs(grid=(7, 5))
    expected = structure_aware_attention(*inputs)
    assert torch.equal(expected, structure_aware_attention(*inputs, grid=[7, 5]))


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="'torch'.*'reference'.*got 'cudnn'"):
        structure_aware_attention(*make_structure_aware_inputs(), backend='cudnn')


def test_backend_from_the_environment(monkeypatch):
    inputs = make_structure_aware_inputs()
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    q = inputs[0].detach().requires_grad_()
    out = structure_aware_attention(q, *inputs[1:])
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert grad.requires_grad  # the cpu backend has no second derivative
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        structure_aware_attention(*inputs)
    structure_aware_attention(*inputs, backend='torch')


@pytest.mark.parametrize(
    'grid, dtype',
    [
        ((7, 5), torch.bfloat16),
        ((7, 5), torch.float64),
        ((9, 8), torch.float32),
        ((9, 8), torch.float64),
        ((3, 4, 6), torch.bfloat16),
        ((70,), torch.float32),
    ],
    ids=str,
)
def test_opcheck(grid, dtype):
    inputs = with_half_spectra(make_structure_aware_inputs(grid=grid), grid)
    inputs[3:5] = [torch.view_as_real(w) for w in inputs[3:5]]
    inputs[:3] = [x.to(dtype) for x in inputs[:3]]
    if dtype == torch.float64:
        inputs[3:] = [x.to(dtype) for x in inputs[3:]]
    leaves = [x.detach().requires_grad_() for x in inputs]
    op = torch.ops.mmattn.structure_aware_attention
    torch.library.opcheck(op, (*leaves, grid, 'torch'))
    out, patterns = op(*inputs, grid, 'torch')
    op = torch.ops.mmattn.structure_aware_attention_backward
    torch.library.opcheck(op, (out, patterns, *inputs, grid, 'torch'))


@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
def test_compile_with_dynamic_shapes(compiler):
    def function(*inputs):
        return structure_aware_attention(*(x * 1.5 for x in inputs))

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
    for shape in (dict(), dict(grid=(9, 8), B=3), dict(grid=(5, 6), M=2)):
        inputs = make_structure_aware_inputs(**shape)
        expected, expected_grads = run_with_grads(function, inputs)
        out, grads = run_with_grads(compiled, inputs)
        assert_close('out', expected, out)
        for e, a in zip(expected_grads, grads, strict=True):
            assert_close('grad', e, a)


class Mixer(torch.nn.Module):
    """A projection, the operator on its own kernels, a projection."""

    def __init__(self, grid, *, heads=2, width=8, patterns=4):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(heads * width, 3 * heads * width)
        self.proj = torch.nn.Linear(heads * width, heads * width)
        self.w_a = torch.nn.Parameter(torch.randn(width, patterns, *grid))
        self.w_b = torch.nn.Parameter(torch.randn(patterns, *grid))
        self.bias = torch.nn.Parameter(torch.randn(width, patterns))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, -1).unbind(2)
        x = structure_aware_attention(q, k, v, self.w_a, self.w_b, self.bias)
        return self.proj(x.view(B, N, C))


def test_export():
    torch.manual_seed(0)
    module = Mixer((7, 5)).eval()
    batch = torch.export.Dim('batch', min=2)
    program = torch.export.export(
        module, (torch.randn(2, 35, 16),), dynamic_shapes=({0: batch},)
    )
    x = torch.randn(5, 35, 16)
    assert_close('out', module(x), program.module()(x))


def test_the_example_in_the_docstring_runs():
    module = importlib.import_module('mmattn.ops.structure_aware_attention.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
