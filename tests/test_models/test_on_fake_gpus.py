"""Every backbone runs on a GPU in deterministic mode and inside CUDA graphs."""

import pytest
import torch
from backbones import build, every_backbone
from kept_tensors import check_nothing_kept
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.ops.triton import launch as triton_launch
from tools.benchmark.tolerances import deterministic

# Those that `torch.use_deterministic_algorithms` refuses on a GPU, by its page.
REFUSED = {
    '_adaptive_avg_pool2d_backward',
    '_adaptive_avg_pool3d_backward',
    'avg_pool3d_backward',
    'adaptive_max_pool2d_backward',
    'max_pool3d_with_indices_backward',
    'fractional_max_pool2d_backward',
    'max_unpool2d',
    'grid_sampler_2d_backward',
    'grid_sampler_3d_backward',
    'cudnn_grid_sampler_backward',
    'upsample_linear1d_backward',
    'upsample_bilinear2d_backward',
    'upsample_bicubic2d_backward',
    'upsample_trilinear3d_backward',
    '_upsample_bilinear2d_aa_backward',
    '_upsample_bicubic2d_aa_backward',
    'reflection_pad1d_backward',
    'reflection_pad2d_backward',
    'replication_pad1d_backward',
    'replication_pad2d_backward',
    'nll_loss2d_forward',
    '_ctc_loss',
    '_embedding_bag',
    'put_',
    'histc',
    'bincount',
    'kthvalue',
    'median',
    'cumsum',
    'scatter_reduce',
    'resize_',
}


class Recorder(TorchDispatchMode):
    """Collect the names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func._schema.name.split('::')[1])
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Have operators choose their kernels, which only have to be named."""
    monkeypatch.setattr(triton_launch, 'device_reason', lambda *args: None)
    monkeypatch.setattr(triton_launch, 'UNAVAILABLE', None)
    monkeypatch.setattr(triton_launch, 'capability', lambda x: 90)


@every_backbone
def test_deterministic_and_fit_for_cuda_graphs(cls):
    """Nothing is refused, read by the CPU, or kept for the next call.

    A CUDA graph reuses the memory of what its first call made, so that what a cache
    keeps of it is overwritten. Tensors on 'meta' have no values to read.
    """
    with check_nothing_kept():
        with torch.device('meta'):
            model = build(cls)
        for size in ((224, 224), (104, 136)):
            with torch.device('meta'), deterministic(True), Recorder() as recorder:
                maps = model(torch.empty(2, 3, *size))
                torch.autograd.backward(maps, [torch.empty_like(x) for x in maps])
            assert not recorder.names & REFUSED
        del model, maps
