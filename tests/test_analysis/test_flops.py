"""The counter: rules against executed products, devices, conventions, refusals."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count
from mmattn.analysis.flops import CONVENTIONS, build
from mmattn.models import DAT, DATPlusPlus, HMaiT, IViT, LiSANet, MaiT, ViT
from mmattn.ops import landmark_attention, structure_aware_attention
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_structure_aware_inputs

Config = pytest.importorskip('mmengine.config').Config

ROOT = Path(__file__).parents[2]
SHAPES = [  # B, N, L, M, D, E
    pytest.param(2, 196, 49, 10, 32, 20, id='expand-2'),
    pytest.param(1, 63, 7, 3, 8, 3, id='expand-1'),
    pytest.param(3, 1, 1, 1, 4, None, id='no-interaction'),
]


def operator_inputs(B, N, L, M, D, E, device='cpu'):
    shapes = [(B, N, M, D)] * 3 + [(B, L, M, D)] * 2
    if E is not None:
        shapes += [(E, M), (M, E)] * 2
    return [torch.randn(s, device=device, requires_grad=True) for s in shapes]


def operator_flops(inputs, backend, backward=False):
    with FlopCounterMode(display=False) as counter:
        out = landmark_attention(*inputs, backend=backend)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


def runnable_backends(*inputs):
    operator = OPERATORS['landmark_attention']
    inputs += (None,) * (9 - len(inputs))
    kernels = set(operator.backends) - set(operator.unsupported(*inputs))
    return [*kernels, 'reference']


@pytest.mark.parametrize('B, N, L, M, D, E', SHAPES)
@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
def test_operator_counts_the_products_of_its_definition(B, N, L, M, D, E, backward):
    inputs = operator_inputs(B, N, L, M, D, E)
    expected = 2 * B * N * L * (4 * M * D + 4 * M * (E or 0))
    backends = [None, *runnable_backends(*inputs)]
    assert 'reference' in backends
    for backend in backends:
        flops = operator_flops(inputs, backend, backward)
        assert flops == expected * (3 if backward else 1), backend


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
@pytest.mark.parametrize('B, N, L, M, D, E', SHAPES)
def test_operator_counts_the_same_on_gpu(B, N, L, M, D, E):
    on_cpu = operator_flops(operator_inputs(B, N, L, M, D, E), 'reference', True)
    inputs = operator_inputs(B, N, L, M, D, E, 'cuda')
    for backend in runnable_backends(*inputs):
        assert operator_flops(inputs, backend, True) == on_cpu, backend


GRIDS = [
    pytest.param(2, (7, 5), 4, id='7x5'),
    pytest.param(1, (14, 14), 16, id='14x14'),
    pytest.param(3, (1, 1), 2, id='one-token'),
    pytest.param(1, (2, 3, 4), 2, id='2x3x4'),
    pytest.param(2, (9,), 2, id='row'),
]


def structure_aware_inputs(B, grid, K, device='cpu'):
    """With half-spectra, as the transforms of kernels are not the operator's."""
    *qkv, w_a, w_b, bias = make_structure_aware_inputs(
        grid=grid, B=B, M=3, D=4, K=K, device=device
    )
    dims = tuple(range(-len(grid), 0))
    spectra = [torch.fft.rfftn(w, dim=dims) for w in (w_a, w_b)]
    return [x.detach().requires_grad_() for x in (*qkv, *spectra, bias)]


def structure_aware_flops(inputs, grid, backend, backward):
    with FlopCounterMode(display=False) as counter:
        out = structure_aware_attention(*inputs, grid=grid, backend=backend)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


def structure_aware_backends(inputs):
    operator = OPERATORS['structure_aware_attention']
    kernels = set(operator.backends) - set(operator.unsupported(*inputs))
    return [*kernels, 'reference']


@pytest.mark.parametrize('B, grid, K', GRIDS)
@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
def test_transforms_and_contractions_of_structure_aware_attention(B, grid, K, backward):
    """As many as the definition executes: K + 1 transforms of k and of v."""
    N = math.prod(grid)
    transform = [round(n * B * N * 12 * math.log2(N)) for n in (1, K)]
    contractions = 2 * B * N * 12 * K
    expected = 2 * (2 * sum(transform) * (1 + backward))
    expected += 2 * contractions * (1 + 2 * backward)
    inputs = structure_aware_inputs(B, grid, K)
    backends = structure_aware_backends(inputs)
    assert {'reference', 'torch'} <= set(backends)
    for backend in (None, *backends):
        assert structure_aware_flops(inputs, grid, backend, backward) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
@pytest.mark.parametrize('B, grid, K', GRIDS)
def test_structure_aware_attention_counts_the_same_on_gpu(B, grid, K):
    inputs = structure_aware_inputs(B, grid, K)
    on_cpu = structure_aware_flops(inputs, grid, 'reference', True)
    inputs = structure_aware_inputs(B, grid, K, 'cuda')
    for backend in structure_aware_backends(inputs):
        assert structure_aware_flops(inputs, grid, backend, True) == on_cpu, backend


MODELS = {
    'dat': lambda backend: DAT('nano', backend=backend),
    'dat++': lambda backend: DATPlusPlus('nano', backend=backend),
    'hmait': lambda backend: HMaiT('nano', backend=backend),
    'mait': lambda backend: MaiT('xtiny', masking='sch2', depth=12, backend=backend),
    'mait-soft': lambda backend: MaiT(
        'xtiny', masking='soft', depth=12, backend=backend
    ),
    'ivit': lambda backend: IViT('nano', backend=backend),
    'lisanet': lambda backend: LiSANet('hybrid-nano', backend=backend),
    'vit-imhsa': lambda backend: ViT('tiny', 'imhsa', backend=backend),
    'vit-mhsa': lambda backend: ViT('tiny', 'mhsa'),
}


@pytest.mark.parametrize('make', MODELS.values(), ids=MODELS)
def test_models_count_the_same_on_every_device_and_backend(make):
    devices = ['cpu', 'meta'] + ['cuda'] * torch.cuda.is_available()
    counts = {
        (device, backend): count(make(backend).to(device), (64, 96))
        for device in devices
        for backend in (None, 'reference')
    }
    for convention in ('mask-credited', 'dense'):
        flops = {key: c.flops_in(convention) for key, c in counts.items()}
        assert len(set(flops.values())) == 1, flops


def test_structure_aware_attention_is_one_operator_on_every_device():
    """Only the definition, whose products every counter sees, is taken apart."""
    devices = ['cpu', 'meta'] + ['cuda'] * torch.cuda.is_available()
    counts = [count(LiSANet('hybrid-nano').to(d), (64, 96)) for d in devices]
    assert all(complexity == counts[0] for complexity in counts)
    # Attention of stages 3 and 4: 6 layers on 4 x 6 tokens and 2 on 2 x 3.
    expected = 0
    for depth, C, N in ((6, 160, 24), (2, 256, 6)):
        values, K = N * C, 8
        transforms = 2 * sum(round(n * values * math.log2(N)) for n in (1, K))
        expected += depth * (transforms + 2 * values * K)
    assert counts[0].transforms == expected


@pytest.mark.parametrize(
    'resize, domain',
    [
        ('zero_embed', 'spatial'),
        ('stretch', 'spatial'),
        ('spectral', 'spatial'),
        ('gfnet', 'frequency'),
    ],
)
@pytest.mark.parametrize('backend', [None, 'reference'])
def test_preparing_kernels_counts_nothing(resize, domain, backend):
    """Not even resizing them, which multiplies matrices: a model does it once."""
    kwargs = dict(backend=backend, kernel_resize=resize, kernel_domain=domain)
    own, other = (
        count(LiSANet('hybrid-nano', img_size=size, **kwargs), (64, 96))
        for size in ((64, 96), 224)
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
    products, transforms, norms = 192, transform, 240
    assert {name: complexity.flops_in(name) for name in CONVENTIONS} == {
        'with transforms': products + transforms,
        'without transforms': products,
        'with transforms and norms': products + transforms + norms,
        'with norms, without transforms': products + norms,
        'mask-credited': products + transforms,
        'dense': products + transforms,
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


STOCK = {  # parameters in M and FLOPs in G as torchvision and ConvNeXt publish them
    'mmpretrain-resnet/resnet50_8xb32_in1k': (224, 224, 25.56, 4.09),
    'mmdet-convnext/mask-rcnn_convnext-t-p4-w7_fpn_amp-ms-crop-3x_coco': (
        800,
        1280,
        48,
        262,
    ),
    'mmseg-convnext/convnext-tiny_upernet_8xb2-amp-160k_ade20k-512x512': (
        512,
        2048,
        60,
        939,
    ),
}


def stock_config(name):
    package, _, path = name.partition('-')
    folder = Path(pytest.importorskip(package).__file__).parent
    return Config.fromfile(folder / '.mim/configs' / f'{path}.py')


@pytest.mark.parametrize('name', STOCK)
def test_stock_models_count_what_is_published(name):
    *shape, params, flops = STOCK[name]
    complexity = count(stock_config(name), shape)
    assert complexity.params / 1e6 == pytest.approx(params, abs=0.5)
    assert complexity.flops / 1e9 == pytest.approx(flops, rel=0.002)


def test_detector_runs_as_many_regions_as_it_keeps():
    cfg = Config.fromfile(ROOT / 'configs/demo/mask_rcnn_ivit_n_hela.py')
    before = count(cfg, (256, 256))
    cfg.model.test_cfg.rpn.max_per_img *= 2
    cfg.model.test_cfg.rcnn.max_per_img *= 3
    after = count(cfg, (256, 256))
    for part, factor in (('bbox_head', 2), ('mask_head', 3)):
        old, new = (c.children['roi_head'].children[part] for c in (before, after))
        assert new.flops == factor * old.flops > 0
    assert after.children['backbone'] == before.children['backbone']


def test_auxiliary_heads_have_parameters_but_no_flops():
    cfg = Config.fromfile(ROOT / 'configs/upernet/ivit_t_160k_ade20k.py')
    head = count(cfg, (64, 64)).children['auxiliary_head']
    assert head.params > 0 and head.flops == 0


def test_other_two_stage_detectors_are_refused():
    with pytest.raises(NotImplementedError, match='HybridTaskCascadeRoIHead'):
        count(stock_config('mmdet-htc/htc_r50_fpn_1x_coco'), (256, 256))


def test_parts_by_name():
    complexity = count(LiSANet('isotropic'), (32, 32))
    assert complexity.part('') is complexity
    block = complexity.part('stages.0.blocks.3')
    stage = complexity.children['stages'].children['0']
    assert block is stage.children['blocks'].children['3']
    for part in ('products', 'transforms', 'norms'):
        inside = sum(getattr(c, part) for c in complexity.children.values())
        assert getattr(complexity, part) == inside > 0, part
    with pytest.raises(ValueError, match="no part '12' of 'stages.0.blocks.12'"):
        complexity.part('stages.0.blocks.12')


def test_parts_add_up():
    model = IViT('nano')
    complexity = count(model, (64, 64))
    assert complexity.params == sum(p.numel() for p in model.parameters())
    stages, stem = (complexity.children[name] for name in ('stages', 'stem'))
    assert stages.flops + stem.flops == complexity.flops
    attention = complexity.part('stages.3.blocks.0.attn')
    inside = sum(child.flops for child in attention.children.values())
    assert attention.flops > inside, 'the operator belongs to no child'
    names = [name for name, _ in complexity.walk(2)]
    assert names[0] == '' and 'stages.3' in names and 'stages.3.blocks' not in names


def test_counting_leaves_the_model_as_it_was():
    model = IViT('nano', frozen_stages=1).train()
    state = [
        (m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()
    ]
    count(model, (64, 64))
    assert state == [
        (m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()
    ]


def test_configs_are_built_without_downloads_or_memory():
    cfg = dict(
        type='mmattn.IViT',
        arch='nano',
        init_cfg=dict(type='Pretrained', checkpoint='https://nowhere.invalid/a.pth'),
    )
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
