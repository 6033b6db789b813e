"""Read what every backbone does on a GPU from its operators, without one."""

import collections
import contextlib

import pytest
import torch
from backbones import build, every_backbone
from kept_tensors import check_nothing_kept
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.models import DAT, DATPlusPlus, HMaiT, IViT, LiSANet
from mmattn.ops.triton import launch as triton_launch
from tools.benchmark.tolerances import deterministic
from tools.dev.kernel_report import starts_kernel

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
    """Count operators by name, and without views in `launches`.

    Copies of the CPU's memory fail: a CUDA graph cannot repeat them.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.launches = collections.Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split('::')[1]
        self.calls[name] += 1
        tensors = [
            x for x in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(x)
        ]
        on_gpu = any(x.device.type == 'cuda' for x in tensors)
        if on_gpu and name in ('_to_copy', 'copy_'):
            assert all(x.is_cuda for x in args if torch.is_tensor(x)), func
        self.launches += on_gpu and starts_kernel(func)
        return out


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
            assert not recorder.calls.keys() & REFUSED
        del model, maps


@contextlib.contextmanager
def bf16_on_gpu():
    """Enable autocast where `torch.autocast` would disable it: there is no GPU."""
    torch.set_autocast_dtype('cuda', torch.bfloat16)
    torch.set_autocast_enabled('cuda', True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if not torch.autocast_decrement_nesting():
            torch.clear_autocast_cache()
        torch.set_autocast_enabled('cuda', False)


def launches(build, *args, autocast):
    """Return how often a model's forward at 224 x 224 starts a kernel.

    It is one of training under autocast, or of testing with a model in bfloat16.
    """
    dtype = torch.float32 if autocast else torch.bfloat16
    with torch.device('meta'):
        model = build(*args).to(dtype).train(autocast)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in model.modules():
            for name, x in list(module.named_parameters(recurse=False)):
                fake = torch.empty(x.shape, dtype=dtype, device='cuda')
                setattr(module, name, nn.Parameter(fake))
            for name, x in list(module.named_buffers(recurse=False)):
                fake = torch.empty(x.shape, dtype=x.dtype, device='cuda')
                setattr(module, name, fake)
        image = torch.empty(2, 3, 224, 224, dtype=dtype, device='cuda')
        context = bf16_on_gpu() if autocast else torch.no_grad()
        with context, Recorder() as recorder:
            model(image)
    print(recorder.launches, recorder.calls.most_common())  # with pytest -s
    return recorder.launches


@every_backbone
def test_inference_reads_nothing_and_copies_nothing_to_the_gpu(cls):
    """A CUDA graph captures it."""
    assert launches(build, cls, autocast=False)


@pytest.mark.parametrize(
    'cls, arch, most_under_autocast, most_in_bf16',
    [
        # At 7 x 7 tokens its 49 landmarks are too many for the kernels, with gradients.
        (IViT, 'tiny', 704, 354),
        (DATPlusPlus, 'tiny', 1206, 673),
        (DAT, 'tiny', 593, 416),
        (HMaiT, 'tiny', 482, 319),
        (LiSANet, 'small', 732, 430),
    ],
)
def test_launches(cls, arch, most_under_autocast, most_in_bf16):
    """Count what autocast adds, most of it casts of parameters, apart."""
    assert launches(cls, arch, autocast=True) <= most_under_autocast
    assert launches(cls, arch, autocast=False) <= most_in_bf16
