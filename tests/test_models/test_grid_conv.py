"""Convolutions in graphs compiled for a CPU, which are one node each."""

import pytest
import torch
from layer_checks import assert_same
from torch.library import opcheck

from mmattn.models.layers.depthwise_conv import conv2d, depthwise_conv2d
from mmattn.ops.common import extension
from tools.benchmark.tolerances import assert_close

# Channels in and out, and the settings, as in the stems and the attention.
CONVS = {
    'stem': (3, 8, dict(kernel=7, stride=4, padding=2, groups=1)),
    'patches': (8, 12, dict(kernel=2, stride=2, padding=0, groups=1)),
    'pointwise': (8, 4, dict(kernel=1, stride=1, padding=0, groups=1)),
    'depthwise': (6, 6, dict(kernel=7, stride=1, padding=3, groups=6)),
    'offsets': (6, 6, dict(kernel=5, stride=4, padding=2, groups=6)),
    'one channel': (1, 1, dict(kernel=3, stride=1, padding=1, groups=1)),
}
every_conv = pytest.mark.parametrize('name', CONVS)


def make(name, dtype=torch.float32):
    torch.manual_seed(0)
    channels, out, settings = CONVS[name]
    K, groups = settings['kernel'], settings['groups']
    sizes = (2, 11, 9, channels), (out, channels // groups, K, K), (out,)
    tensors = [torch.randn(size).to(dtype) for size in sizes]
    return tensors, (settings['stride'], settings['padding'], groups)


def compiled(*settings):
    def run(x, weight, bias):
        return conv2d(x, weight, bias, *settings)

    return torch.compile(run, fullgraph=True, backend='aot_eager')


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@every_conv
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('extended', [True, False])
def test_output_and_gradients(name, dtype, extended, monkeypatch):
    if not extended:
        monkeypatch.setattr(extension, 'UNAVAILABLE', 'not built')
    tensors, settings = make(name, dtype)
    # There PyTorch's own convolution, which is not ours, rounds more than we allow.
    coarse = 'AVX512' not in torch.backends.cpu.get_cpu_capability()
    coarse &= name == 'depthwise' and not extended
    exact = dtype if coarse else torch.float64
    out, _ = assert_same(
        lambda *args: conv2d(*args, *settings),
        compiled(*settings),
        tensors,
        dtype,
        exact,
    )
    assert out.is_contiguous()


def test_autocast_and_frozen_tensors():
    (x, weight, bias), settings = make('stem')
    conv = compiled(*settings)

    def under_autocast(function):
        def run(weight):
            with torch.autocast('cpu', torch.bfloat16):
                return function(x, weight, bias)

        return run

    eager = under_autocast(lambda *args: conv2d(*args, *settings))
    out, (grad,) = assert_same(
        eager, under_autocast(conv), [weight], torch.bfloat16, exact=None
    )
    assert out.dtype == torch.bfloat16 and grad.dtype == torch.float32
    conv(x, weight, bias.requires_grad_()).sum().backward()
    assert_close('grad', torch.full_like(bias, out[..., 0].numel()), bias.grad)


@pytest.mark.parametrize('name', ['stem', 'depthwise'])
def test_registration(name):
    tensors, settings = make(name)
    for x in tensors:
        x.requires_grad_()
    opcheck(torch.ops.mmattn.grid_conv2d.default, (*tensors, *settings))


def test_transforms_and_exported_graphs_have_a_convolution():
    (x, weight, bias), _ = make('depthwise')

    class Conv(torch.nn.Module):
        def forward(self, x):
            return depthwise_conv2d(x, weight, bias)

    graph = str(torch.export.export(Conv(), (x,)).graph)
    assert 'conv2d' in graph
    assert 'grid_conv2d' not in graph
    expected = depthwise_conv2d(x, weight, bias)
    mapped = torch.func.vmap(lambda x: depthwise_conv2d(x[None], weight, bias)[0])
    out = torch.compile(mapped, fullgraph=True, backend='aot_eager')(x)
    assert_close('vmap', expected, out)
