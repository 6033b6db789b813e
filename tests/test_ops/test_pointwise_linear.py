"""`pointwise_linear` is `F.linear`, whatever it goes through."""

import pytest
import torch
import torch.nn.functional as F

from mmattn.ops import pointwise_linear
from mmattn.ops.testing import assert_close, run_with_grads

SHAPES = [(63,), (2, 7, 5), (1, 1), (4, 16), (0, 3, 3), (2, 56, 56), ()]


@pytest.fixture(params=[1, 2], ids='{} threads'.format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make(shape, dtype, channels=12, out_channels=20):
    generator = torch.Generator().manual_seed(0)
    sizes = [(*shape, channels), (out_channels, channels), (out_channels,)]
    return [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]


@pytest.mark.parametrize('bias', [True, False], ids=['bias', 'no bias'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_output_and_gradients(shape, dtype, bias, threads):
    tensors = make(shape, dtype)[: 3 if bias else 2]
    expected, expected_grads = run_with_grads(F.linear, tensors, dtype=torch.float64)
    out, grads = run_with_grads(pointwise_linear, tensors)
    assert out.is_contiguous()
    assert_close('out', expected, out)
    for name, want, got in zip(
        ('x', 'weight', 'bias'), expected_grads, grads, strict=False
    ):
        assert_close(f'grad of {name}', want, got)


@pytest.mark.parametrize('view', ['transposed', 'sliced', 'expanded'])
def test_views(view, threads):
    x, weight, bias = make((4, 6, 8), torch.float32)
    x = {
        'transposed': x.transpose(0, 1),
        'sliced': x[:, ::2, 1:7],
        'expanded': x[:1].expand(5, -1, -1, -1),
    }[view]
    assert_close('out', F.linear(x, weight, bias), pointwise_linear(x, weight, bias))


def test_float32_on_a_cpu_is_a_convolution(monkeypatch):
    x, weight, bias = make((8, 8), torch.float32)
    monkeypatch.setattr(F, 'linear', None)
    pointwise_linear(x, weight, bias)
    with pytest.raises(TypeError):
        pointwise_linear(x.double(), weight.double(), bias.double())
    with torch.autocast('cpu', torch.float16), pytest.raises(TypeError):
        pointwise_linear(x, weight, bias)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_computes_in_the_lower_dtype(dtype):
    x, weight, bias = make((8, 8), torch.float32)
    with torch.autocast('cpu', dtype):
        out, expected = pointwise_linear(x, weight, bias), F.linear(x, weight, bias)
    assert out.dtype == dtype
    assert_close('out', expected, out)


def test_compiles_once_for_changing_sizes():
    compiled = torch.compile(
        pointwise_linear, fullgraph=True, dynamic=True, backend='aot_eager'
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for side in (5, 16, 23):
            tensors = make((2, side, side + 1), torch.float32)
            assert_close('out', F.linear(*tensors), compiled(*tensors))
