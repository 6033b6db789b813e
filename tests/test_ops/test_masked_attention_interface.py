"""Masked attention's contract: errors, backends, compilation and export."""

import doctest
import importlib

import pytest
import torch

from mmattn.ops import masked_attention
from tools.benchmark.inputs import make_masked_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

GRID = (7, 5)
SETTINGS = GRID, 3, 1, 'zero'


def call(q, k, v, bias=None, alpha=None, **settings):
    settings = dict(grid=GRID, num_special=1) | settings
    return masked_attention(q, k, v, bias=bias, alpha=alpha, **settings)


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (0, (2, 36, 24), r'\(2, 36, 24\)'),
        (1, (2, 35, 3, 8), r'\(2, 35, 3, 8\)'),
        (2, (2, 36, 3, 7), r'\(2, 36, 3, 7\)'),
        (3, (2, 3, 3), r'`bias` .*\(3, 3, 3\), got \(2, 3, 3\)'),
        (3, (3, 5, 5), r'`bias` .*\(3, 3, 3\), got \(3, 5, 5\)'),
        (3, (3, 9), r'got \(3, 9\)'),
        (4, (2,), r'`alpha` .*\(3,\), got \(2,\)'),
        (4, (3, 1), r'got \(3, 1\)'),
    ],
)
def test_wrong_shape(position, shape, message):
    inputs = make_masked_inputs()
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        call(*inputs)


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(grid=(7, 6)), r'36 tokens, got num_special=1 .*\(7, 6\)'),
        (dict(num_special=0), 'num_special=0'),
        (dict(grid=(37, 1), num_special=-1), 'num_special=-1'),
        (dict(grid=(35,)), r'\(35,\)'),
        (dict(kernel_size=4), 'got 4'),
        (dict(kernel_size=-1), 'got -1'),
        (dict(mask_fill='inf'), "'zero', 'neg_inf'.*got 'inf'"),
        (dict(masked_heads=4), 'at most 3.*got 4'),
        (dict(masked_heads=-1), 'got -1'),
        (dict(masked_heads=[0, 3]), r'got \[0, 3\]'),
        (dict(masked_heads=[-1]), r'got \[-1\]'),
        (dict(global_bias=torch.zeros(1, 36, 36)), r'\(0, 36, 36\), got \(1, 36, 36\)'),
        (
            dict(masked_heads=2, global_bias=torch.zeros(1, 35, 35)),
            r'\(1, 36, 36\), got \(1, 35, 35\)',
        ),
        (dict(alpha=torch.ones(3), bias=torch.ones(3, 3, 3)), r'bias \(3, 3, 3\)'),
        (dict(alpha=torch.ones(3), mask_fill='neg_inf'), "'neg_inf'"),
    ],
)
def test_wrong_setting(settings, message):
    q, k, v, *_ = make_masked_inputs()
    with pytest.raises(ValueError, match=message):
        call(q, k, v, **settings)


@pytest.mark.parametrize(
    'shape, message',
    [((2, 0, 3, 8), 'N=0'), ((2, 36, 0, 8), 'M=0'), ((2, 36, 3, 0), 'D=0')],
)
def test_empty_axis(shape, message):
    with pytest.raises(ValueError, match=message):
        call(*torch.zeros(3, *shape))


def test_wrong_dtype_and_device():
    q, k, v, bias, _ = make_masked_inputs(bias=True)
    with pytest.raises(ValueError, match='float16'):
        call(q.half(), k, v)
    with pytest.raises(ValueError, match='int64'):
        call(q.long(), k.long(), v.long())
    with pytest.raises(ValueError, match="one device.*'cpu', 'meta'"):
        call(q, k, v, bias.to('meta'))


@pytest.mark.parametrize('fields', [('k',), ('v',), ('k', 'v')], ids=str)
def test_keys_on_another_device(fields):
    q, k, v, *_ = make_masked_inputs()
    tensors = dict(k=k, v=v)
    tensors |= {name: tensors[name].to('meta') for name in fields}
    with pytest.raises(ValueError, match="one device.*'cpu', 'meta'"):
        call(q, **tensors)


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="'torch'.*'reference'.*got 'cudnn'"):
        call(*make_masked_inputs(), backend='cudnn')


def test_cpu_backend_is_the_automatic_choice():
    inputs = make_masked_inputs(grid=(20, 20), num_special=0)
    chosen, named = (
        call(*inputs, grid=(20, 20), num_special=0, backend=name)
        for name in (None, 'torch')
    )
    assert torch.equal(chosen, named)


def test_very_small_maps_with_gradients_take_the_definition(monkeypatch):
    impl = importlib.import_module('mmattn.ops.masked_attention.torch_impl')
    q, k, v, *_ = make_masked_inputs(grid=(7, 5), num_special=1, B=2, M=3)

    def attend(backend=None):
        options = dict(num_special=1, masked_heads=2, backend=backend)
        return masked_attention(q, k, v, (7, 5), **options)

    elements = 2 * 2 * 36**2
    v.requires_grad_()
    for limit, num_kernels in ((elements, 0), (elements - 1, 1)):
        monkeypatch.setattr(impl, 'REFERENCE_ELEMENTS', limit)
        for backend, expected in ((None, num_kernels), ('torch', 1)):
            graph = attend(backend).grad_fn.next_functions
            names = [type(function).__name__ for function, _ in graph]
            assert sum('masked_attention' in name for name in names) == expected


def test_backend_from_the_environment(monkeypatch):
    inputs = make_masked_inputs()
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    q = inputs[0].detach().requires_grad_()
    out = call(q, *inputs[1:])
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert grad.requires_grad  # kernels have no second derivative
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        call(*inputs)
    call(*inputs, backend='torch')


KINDS = {'hard': dict(), 'bias': dict(bias=True), 'soft': dict(alpha=True)}
every_kind = pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS.keys())


@every_kind
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
def test_opcheck(linear, dtype, kind):
    inputs = make_masked_inputs(dtype=dtype, **kind)
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    op = torch.ops.mmattn.masked_attention
    torch.library.opcheck(op, (*leaves, *SETTINGS, 'torch'))
    out, lse = op(*inputs, *SETTINGS, 'torch')
    op = torch.ops.mmattn.masked_attention_backward
    torch.library.opcheck(op, (out, out, lse, *inputs, *SETTINGS, 'torch'))


def test_meta_tensors():
    q, k, v, bias, _ = make_masked_inputs(bias=True, device='meta')
    out = call(q, k, v, bias[:2], masked_heads=2, backend='torch')
    assert out.device.type == 'meta' and out.shape == q.shape


def test_log_sum_exp():
    q, k, v, *_ = make_masked_inputs(dtype=torch.float64)
    out, lse = torch.ops.mmattn.masked_attention(
        q, k, v, None, None, *SETTINGS, 'torch'
    )
    reference = importlib.import_module('mmattn.ops.masked_attention.reference')
    mask = reference.neighborhood_mask(GRID, 3, 1)
    scores, _ = reference.attention_scores(q, k, v, mask)
    assert_close('lse', scores.logsumexp(-1), lse)


@every_kind
@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
def test_compile_with_dynamic_shapes(linear, compiler, kind):
    def function(q, k, v, bias, alpha, grid, heads):
        q, k, v = (x * 1.5 for x in (q, k, v))
        return call(q, k, v, bias, alpha, grid=grid, masked_heads=heads)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
    for shape in (dict(), dict(grid=(9, 8), B=3), dict(grid=(5, 6), M=2)):
        inputs = make_masked_inputs(**shape, **kind)
        heads = shape.get('M', 3)
        settings = shape.get('grid', GRID), heads
        expected, expected_grads = run_with_grads(
            lambda *x, s=settings: function(*x, *s), inputs
        )
        out, grads = run_with_grads(lambda *x, s=settings: compiled(*x, *s), inputs)
        assert_close('out', expected, out)
        for e, a in zip(expected_grads, grads, strict=True):
            if e is not None:
                assert_close('grad', e, a)


class Mixer(torch.nn.Module):
    """A projection, the operator on some heads, a projection."""

    def __init__(self, *, heads=3, width=8):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(heads * width, 3 * heads * width)
        self.proj = torch.nn.Linear(heads * width, heads * width)
        self.bias = torch.nn.Parameter(torch.randn(2, 3, 3))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, -1).unbind(2)
        x = call(q, k, v, self.bias, masked_heads=(0, 2))
        return self.proj(x.reshape(B, N, C))


def test_export():
    torch.manual_seed(0)
    module = Mixer().eval()
    batch = torch.export.Dim('batch', min=2)
    program = torch.export.export(
        module, (torch.randn(2, 36, 24),), dynamic_shapes=({0: batch},)
    )
    x = torch.randn(5, 36, 24)
    assert_close('out', module(x), program.module()(x))


@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_autocast_casts_mixed_heads(name):
    q, k, v, bias, _ = make_masked_inputs(bias=True)
    global_bias = torch.randn(1, 36, 36)
    settings = dict(masked_heads=2, global_bias=global_bias, backend=name)
    expected = call(*(x.bfloat16() for x in (q, k, v)), bias[:2], **settings)
    with torch.autocast('cpu', torch.bfloat16):
        out = call(q, k, v, bias[:2], **settings)
    assert out.dtype == torch.bfloat16 and torch.equal(expected, out)
    with torch.autocast('cpu', enabled=False):
        assert call(q, k, v, bias[:2], **settings).dtype == torch.float32


def test_the_example_in_the_docstring_runs():
    module = importlib.import_module('mmattn.ops.masked_attention.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
