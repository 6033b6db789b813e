"""The counter: rules against executed products, devices, conventions, refusals."""

import math
from functools import partial

import pytest
import torch
from mmengine.hub import get_config
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count
from mmattn.analysis.flops import CONVENTIONS, build
from mmattn.models import DAT, DATPlusPlus, HMaiT, IViT, LiSANet, MaiT, ViT
from mmattn.models.layers import MaskedAttention, NeighborhoodAttention
from mmattn.models.layers.depthwise_conv import DepthwiseConv
from mmattn.ops.common import extension

MODELS = {
    'dat': DAT,
    'dat++': DATPlusPlus,
    'hmait': HMaiT,
    'mait': partial(MaiT, masking='sch2'),
    'mait-soft': partial(MaiT, masking='soft'),
    'ivit': IViT,
    'lisanet': partial(LiSANet, img_size=64),
    'vit-imhsa': partial(ViT, attention='imhsa'),
}


def shallow(make, **kwargs):
    """Build the first preset with two blocks a stage, or five in all."""
    arch = next(iter(getattr(make, 'func', make).arch_zoo.values()))
    depths = dict(depths=(2,) * len(arch.get('depths', ())), depth=5)
    return make({key: depths.get(key, arch[key]) for key in arch}, **kwargs)


@pytest.mark.parametrize('make', MODELS.values(), ids=MODELS)
def test_models_count_the_same_on_every_device_and_backend(make):
    devices = ['cpu', 'meta'] + ['cuda'] * torch.cuda.is_available()
    counts = {
        (device, backend): count(shallow(make, backend=backend).to(device), (64, 96))
        for device in devices
        for backend in (None, 'reference')
    }
    for convention in ('mask-credited', 'dense'):
        flops = {key: c.flops_in(convention) for key, c in counts.items()}
        assert len(set(flops.values())) == 1, flops


@pytest.mark.parametrize('soft', [False, True], ids=['hard', 'soft'])
def test_masks_are_credited(soft):
    """Two masked heads of three, a class token, 7 x 5 patches."""
    N, M, D = 36, 3, 8
    attention = MaskedAttention(M * D, M, 2, soft=soft, num_special=1)
    model = Calls(lambda x: attention(x.new_zeros(1, N, M * D), (7, 5)))
    model.attention = attention
    complexity = count(model, (7, 5))
    dense = 4 * N * (M * D) ** 2 + 2 * N**2 * M * D
    outside = 0 if soft else 2 * (N**2 - 35 * 10 - N) * 2 * D
    assert complexity.flops_in('dense') == dense
    assert complexity.flops == complexity.flops_in('mask-credited') == dense - outside
    assert complexity.part('attention').outside_masks == outside
    assert complexity.part('attention.qkv').outside_masks == 0


@pytest.mark.parametrize('side', [(2, 6), (20, 30), (50, 60)], ids=str)
def test_windows_count_whatever_they_are_run_in(side):
    """Tiles multiply more keys than a window has."""
    layer = NeighborhoodAttention(3, 1, kernel_size=5)
    model = Calls(lambda x: layer(x.permute(0, 2, 3, 1)))
    model.layer = layer
    tokens = max(side[0], 5) * max(side[1], 5)  # padded to a window
    qkv, projection = 27 * tokens, 9 * side[0] * side[1]
    assert count(model, side).flops == qkv + projection + 2 * tokens * 25 * 3


@pytest.mark.parametrize(
    'resize, domain, backend',
    [('spectral', 'spatial', None), ('gfnet', 'frequency', 'reference')],
)
def test_preparing_kernels_counts_nothing(resize, domain, backend):
    """Not even resizing them, which multiplies matrices: a model does it once."""
    kwargs = dict(backend=backend, kernel_resize=resize, kernel_domain=domain)
    own, other = (
        count(shallow(LiSANet, img_size=size, **kwargs), (64, 96))
        for size in ((64, 96), 96)
    )
    assert own.flops == other.flops and own.products == other.products


def test_conventions():
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4, bias=False))
    model.append(Calls(torch.fft.rfft2))
    complexity = count(model, (2, 8))
    transform = round(3 * 2 * 4 * math.log2(2 * 4))
    assert complexity.norms == 3 * 2 * 8 * 5
    assert complexity.products == 3 * 2 * 8 * 4
    assert complexity.transforms == transform
    assert complexity.flops == 3 * 2 * 8 * 4 + transform
    assert {name: complexity.flops_in(name) for name in CONVENTIONS} == {
        'with transforms': 192 + transform,
        'without transforms': 192,
        'with transforms and norms': 192 + transform + 240,
        'with norms, without transforms': 192 + 240,
        'mask-credited': 192 + transform,
        'dense': 192 + transform,
    }
    with pytest.raises(ValueError, match="got 'all'"):
        complexity.flops_in('all')


@pytest.mark.parametrize(
    'transform', [torch.fft.fft2, lambda x: torch.fft.irfft2(torch.fft.rfft2(x))]
)
def test_transforms_of_any_kind_count_n_log_n(transform):
    complexity = count(Calls(transform), (4, 6))
    one = round(3 * 24 * math.log2(24))
    assert complexity.flops in (one, 2 * one) and complexity.products == 0


def test_every_attention_kernel_of_pytorch_counts_the_same():
    q, k, v = torch.randn(3, 2, 4, 50, 16).unbind()
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel), FlopCounterMode(display=False) as counter:
            nn.functional.scaled_dot_product_attention(q, k, v)
        assert counter.get_total_flops() == 2 * 2 * 4 * 50 * 50 * (16 + 16)


MASK_RCNN = 'mmdet::convnext/mask-rcnn_convnext-t-p4-w7_fpn_amp-ms-crop-3x_coco.py'
UPERNET = 'mmseg::convnext/convnext-tiny_upernet_8xb2-amp-160k_ade20k-512x512.py'
STOCK = {  # parameters in M and FLOPs in G as torchvision and ConvNeXt publish them
    'mmpretrain::resnet/resnet50_8xb32_in1k.py': (224, 224, 25.56, 4.09),
    MASK_RCNN: (800, 1280, 48, 262),
    UPERNET: (512, 2048, 60, 939),
}


@pytest.mark.parametrize('name', STOCK)
def test_stock_models_count_what_is_published(name):
    *shape, params, flops = STOCK[name]
    complexity = count(get_config(name), shape)
    assert complexity.params / 1e6 == pytest.approx(params, abs=0.5)
    assert complexity.flops / 1e9 == pytest.approx(flops, rel=0.002)


def test_parts_by_name():
    complexity = count(LiSANet('isotropic'), (32, 32))
    assert complexity.part('') is complexity
    block = complexity.part('blocks.3')
    assert block is complexity.children['blocks'].children['3']
    for part in ('products', 'transforms', 'norms'):
        inside = sum(getattr(c, part) for c in complexity.children.values())
        assert getattr(complexity, part) == inside > 0, part
    with pytest.raises(ValueError, match="no part '12' of 'blocks.12'"):
        complexity.part('blocks.12')


def test_counting_leaves_the_model_as_it_was():
    model = IViT('nano', frozen_stages=1).train()

    def state():
        parameters = [p.requires_grad for p in model.parameters()]
        return parameters, [m.training for m in model.modules()]

    before = state()
    count(model, (64, 64))
    assert state() == before


def test_configs_are_built_without_downloads_or_memory():
    start = dict(type='Pretrained', checkpoint='https://nowhere.invalid/a.pth')
    cfg = dict(type='mmattn.IViT', arch='nano', init_cfg=start)
    model = build(cfg)
    model.init_weights()
    assert {p.device.type for p in model.parameters()} == {'meta'}
    assert 'init_cfg' in cfg
    assert count(cfg, (64, 64)) == count(IViT('nano'), (64, 64))


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, x):
        return self.function(x)


@torch.library.custom_op('mmattn_test::without_a_rule', mutates_args=())
def without_a_rule(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT


UNCOUNTED = {
    'a custom operator': without_a_rule,
    'a matrix times a vector': lambda x: x[0, 0].mv(x[0, 0, 0]),
    'the fused encoder': nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
}


@pytest.mark.parametrize('function', UNCOUNTED.values(), ids=UNCOUNTED)
def test_what_cannot_be_counted_is_refused(function):
    model = Calls(lambda x: function(x[0] if isinstance(function, nn.Module) else x))
    with pytest.raises(NotImplementedError, match='has no FLOP rule'):
        count(model, (8, 8))


@pytest.mark.skipif(extension.UNAVAILABLE is not None, reason='needs the extension')
def test_gradients_of_compiled_depthwise_convolutions_count_twice_the_forward():
    """PyTorch counts its own otherwise."""
    conv, x = DepthwiseConv(32, 3), torch.randn(1, 9, 7, 32, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        conv(x).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * x.numel() * 9
