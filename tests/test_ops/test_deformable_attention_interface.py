"""Deformable attention's contracts: errors, backends, compilation and export."""

import doctest
import importlib

import pytest
import torch
from deformable_cases import GRID, products  # noqa: F401

from mmattn.ops import deformable_attention
from mmattn.ops.deformable_attention import torch_impl
from tools.benchmark.inputs import make_deformable_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads


def call(q, k, v, positions, table, grid=GRID, **settings):
    return deformable_attention(q, k, v, grid, positions, table, **settings)


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (0, (2, 35, 32), r'`q` .* 4 dimensions, got \(2, 35, 32\)'),
        (1, (2, 11, 4, 7), r'`k` .*\(2, 11, 4, 8\), got \(2, 11, 4, 7\)'),
        (2, (2, 12, 4, 8), r'`v` .*\(2, 11, 4, 8\), got \(2, 12, 4, 8\)'),
        (3, (2, 2, 12, 2), r'`positions` .*\(2, 2, 11, 2\), got \(2, 2, 12, 2\)'),
        (3, (2, 2, 11, 3), r'got \(2, 2, 11, 3\)'),
        (3, (2, 3, 11, 2), 'groups must divide the heads, got G=3 and M=4'),
        (3, (2, 0, 11, 2), 'G=0'),
        (4, (3, 13, 9), r'`table` .*\(4, 13, 9\), got \(3, 13, 9\)'),
        (4, (4, 117), r'`table` .* 3 dimensions, got \(4, 117\)'),
        (4, (4, 0, 9), r'not be empty, got \(4, 0, 9\)'),
    ],
)
def test_wrong_shape(position, shape, message):
    inputs = make_deformable_inputs()
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        call(*inputs)


@pytest.mark.parametrize('grid', [(7, 6), (35,), (5, 7, 1)], ids=str)
def test_wrong_grid(grid):
    with pytest.raises(ValueError, match='`grid` must have 35 queries'):
        call(*make_deformable_inputs(), grid=grid)


@pytest.mark.parametrize(
    'axis, message', [(1, 'K=0'), (2, 'M=0'), (3, 'D=0')], ids=['K', 'M', 'D']
)
def test_empty_axis(axis, message):
    q, k, v, positions, table = make_deformable_inputs()
    empty = slice(None), slice(0, 0)
    k, v = (x.movedim(axis, 1)[empty].movedim(1, axis) for x in (k, v))
    if axis > 1:
        q = q.movedim(axis, 1)[empty].movedim(1, axis)
    with pytest.raises(ValueError, match=message):
        call(q, k, v, positions, table)


def test_wrong_dtype_and_device():
    q, k, v, positions, table = make_deformable_inputs()
    with pytest.raises(ValueError, match='float16'):
        call(q.half(), k, v, positions, table)
    with pytest.raises(ValueError, match='`positions` .*int64'):
        call(q, k, v, positions.long(), table)
    with pytest.raises(ValueError, match="one device.*'cpu', 'meta'"):
        call(q, k, v, positions, table.to('meta'))


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="'torch'.*'reference'.*got 'cudnn'"):
        call(*make_deformable_inputs(), backend='cudnn')


def test_cpu_backend_is_the_automatic_choice():
    inputs = make_deformable_inputs()
    assert torch.equal(call(*inputs), call(*inputs, backend='torch'))
    assert not torch.equal(call(*inputs), call(*inputs, backend='reference'))


def test_small_inputs_take_the_definition(monkeypatch):
    monkeypatch.setattr(torch_impl, 'REFERENCE_PAIRS', 35 * 11)
    inputs = make_deformable_inputs()
    definition = call(*inputs, backend='reference')
    assert torch.equal(call(*inputs), definition)
    assert not torch.equal(call(*inputs, backend='torch'), definition)
    monkeypatch.setattr(torch_impl, 'REFERENCE_PAIRS', 35 * 11 - 1)
    assert not torch.equal(call(*inputs), definition)


def test_backend_from_the_environment(monkeypatch):
    inputs = make_deformable_inputs()
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    q = inputs[0].detach().requires_grad_()
    (grad,) = torch.autograd.grad(call(q, *inputs[1:]).sum(), q, create_graph=True)
    assert grad.requires_grad  # products have no second derivative
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        call(*inputs)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
def test_opcheck(dtype):
    inputs = make_deformable_inputs(dtype=dtype)
    settings = GRID, True, 'torch'
    op = torch.ops.mmattn.deformable_attention
    torch.library.opcheck(
        op, (*(x.detach().requires_grad_() for x in inputs), *settings)
    )
    out, lse = op(*inputs, *settings)
    op = torch.ops.mmattn.deformable_attention_backward
    torch.library.opcheck(op, (out, out, lse, *inputs, *settings))


def test_meta_tensors():
    inputs = make_deformable_inputs(device='meta')
    out = call(*inputs, backend='torch')
    assert out.device.type == 'meta' and out.shape == inputs[0].shape


def test_log_sum_exp():
    inputs = make_deformable_inputs(dtype=torch.float64)
    _, lse = torch.ops.mmattn.deformable_attention(*inputs, GRID, True, 'torch')
    q, k, _, positions, table = inputs
    reference = importlib.import_module('mmattn.ops.deformable_attention.reference')
    bias = reference.sampled_bias(table, positions, GRID, align_corners=True)
    scores = torch.einsum('bnmd,bkmd->bmnk', q, k) * q.shape[-1] ** -0.5
    assert_close('lse', (scores + bias).logsumexp(-1), lse)


@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
def test_compile_with_dynamic_shapes(compiler):
    def function(q, k, v, positions, table, grid):
        return call(*(x * 1.5 for x in (q, k, v)), positions, table, grid)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
    for shape in (dict(), dict(grid=(9, 8), B=3, K=6), dict(table_size=(5, 6))):
        inputs = make_deformable_inputs(**shape)
        grid = shape.get('grid', GRID)
        expected, expected_grads = run_with_grads(
            lambda *x, g=grid: function(*x, g), inputs
        )
        out, grads = run_with_grads(lambda *x, g=grid: compiled(*x, g), inputs)
        assert_close('out', expected, out)
        for e, a in zip(expected_grads, grads, strict=True):
            assert_close('grad', e, a)


class Mixer(torch.nn.Module):
    """Attention of a map to its first tokens, between projections."""

    def __init__(self, heads=2):
        super().__init__()
        self.heads = heads
        self.q, self.kv = torch.nn.Linear(16, 16), torch.nn.Linear(16, 32)
        self.table = torch.nn.Parameter(torch.randn(heads, 13, 9))

    def forward(self, x, positions):
        k, v = self.kv(x[:, :6]).unflatten(2, (2, self.heads, -1)).unbind(2)
        q = self.q(x).unflatten(2, (self.heads, -1))
        return call(q, k, v, positions, self.table).flatten(2)


def test_export_of_any_batch():
    torch.manual_seed(0)
    module = Mixer().eval()
    batch = torch.export.Dim('batch', min=2)
    example = torch.randn(2, 35, 16), torch.rand(2, 1, 6, 2) * 2 - 1
    program = torch.export.export(
        module, example, dynamic_shapes=({0: batch}, {0: batch})
    )
    inputs = torch.randn(5, 35, 16), torch.rand(5, 1, 6, 2) * 2 - 1
    assert_close('out', module(*inputs), program.module()(*inputs))


def test_the_example_in_the_docstring_runs():
    module = importlib.import_module('mmattn.ops.deformable_attention.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
