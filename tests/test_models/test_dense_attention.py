"""Dense attention is PyTorch's, and takes our kernel where that is faster."""

import importlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from layer_checks import assert_same
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from mmattn.models.layers import dense_attention
from mmattn.ops.common import extension
from tools.benchmark.tolerances import assert_close

module = importlib.import_module('mmattn.models.layers.dense_attention')
GRID, K, M, D = (4, 40), 500, 2, 8
needs_kernel = pytest.mark.skipif(
    extension.UNAVAILABLE is not None, reason='the extension is not built'
)


def inputs(dtype=torch.float32, grid=GRID, K=K):
    torch.manual_seed(0)
    H, W = grid
    return [torch.randn(2, n, M, D).to(dtype) for n in (H * W, K, K)]


def ours(q, k, v):
    return dense_attention(q, k, v, GRID)


def pytorchs(q, k, v):
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads).transpose(1, 2)


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of our kernel."""
    counted, function = [], module.deformable_attention

    def count(*args, **kwargs):
        counted.append(1)
        return function(*args, **kwargs)

    monkeypatch.setattr(module, 'deformable_attention', count)
    return counted


@needs_kernel
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_equals_pytorchs(calls, dtype):
    out, _ = assert_same(pytorchs, ours, inputs(dtype))
    assert len(calls) == 1 and out.dtype == dtype


@needs_kernel
def test_under_autocast(calls):
    with torch.autocast('cpu', torch.bfloat16):
        out = dense_attention(*inputs(K=3), GRID)
    assert len(calls) == 1 and out.dtype == torch.bfloat16


@needs_kernel
def test_compiled_graph_has_our_node():
    compiled = torch.compile(ours, fullgraph=True, backend='aot_eager')
    tensors = inputs()
    with torch.profiler.profile() as profile:
        assert_close('out', pytorchs(*tensors), compiled(*tensors))
    assert 'mmattn::deformable_attention' in {row.key for row in profile.key_averages()}


def test_pytorchs_where_it_is_as_fast_or_has_to_be_seen(calls, monkeypatch):
    ours(*inputs(K=100))  # few keys
    dense_attention(*inputs(grid=(2, 3)), (2, 3))  # few scores
    ours(*inputs(torch.float64))
    ours(*(x.to('meta') for x in inputs()))
    with warnings.catch_warnings(action='error', category=torch.jit.TracerWarning):
        torch.jit.trace(ours, inputs(), check_trace=False)
    with sdpa_kernel(SDPBackend.MATH):  # the one with tangents
        torch.func.jvp(ours, tuple(inputs()), tuple(inputs()))
    torch.export.export(Attend(), tuple(inputs()))
    with Watch() as watch:
        ours(*inputs())
    assert F.scaled_dot_product_attention in watch.seen
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    ours(*inputs())
    monkeypatch.delenv('MMATTN_BACKEND')
    monkeypatch.setattr(extension, 'UNAVAILABLE', 'no extension')
    ours(*inputs())
    assert not calls


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return ours(q, k, v)


class Watch(TorchFunctionMode):
    seen = ()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen = (*self.seen, function)
        return function(*args, **(kwargs or {}))
