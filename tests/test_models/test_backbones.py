"""Promises of every registered backbone; a new one is tested the day it appears."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from mmattn.models import (
    LiSANet,
    MaiT,
    ViT,
)
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS

pytest.importorskip('mmengine')


class PlainLiSANet(LiSANet):
    """LiSANet of one stage, whose branches are others, with kernels in frequency."""

    arch_zoo = {'isotropic': LiSANet.arch_zoo['isotropic']}

    def __init__(self, arch='isotropic', **kwargs):
        kernels = dict(kernel_resize='gfnet', kernel_domain='frequency')
        super().__init__(arch, **(kernels | kwargs))


class DistilledMaiT(MaiT):
    """MaiT with all that its default has not."""

    arch_zoo = {'xtiny': MaiT.arch_zoo['xtiny']}

    def __init__(self, arch='xtiny', **kwargs):
        super().__init__(
            arch,
            masking='soft',
            distilled=True,
            layer_scale=0.1,
            drop_path_schedule='constant',
            **kwargs,
        )


class MaskedViT(ViT):
    arch_zoo = {'tiny': ViT.arch_zoo['tiny']}

    def __init__(self, arch='tiny', **kwargs):
        super().__init__(arch, 'masked', **kwargs)


BACKBONES = sorted(
    (c for c in MODELS.module_dict.values() if issubclass(c, BaseBackbone)),
    key=lambda cls: cls.__name__,
)
BACKBONES += [PlainLiSANet, DistilledMaiT, MaskedViT]
ARCHS = [
    pytest.param(cls, arch, id=f'{cls.__name__}-{arch}')
    for cls in BACKBONES
    for arch in cls.arch_zoo
]
SHAPES = (32, 32), (33, 47), (224, 224), (800, 1333)
ODD_SHAPES = ((33, 1333),)  # of the other presets, which differ in widths
SINGLE = dict(rtol=1e-5, atol=1e-6)  # where a part computes in float32
BF16_RMS_ERROR = 0.1  # relative, of a whole network

every_backbone = pytest.mark.parametrize('cls', BACKBONES, ids=lambda cls: cls.__name__)


def shallow_arch(cls, name=None):
    """A preset, by default the first, with one block a stage, or two in all."""
    arch = cls.arch_zoo[name or next(iter(cls.arch_zoo))]
    num_stages = len(arch.get('depths', ()))
    shallow = dict(depths=(1,) * num_stages if num_stages > 1 else (2,), depth=2)
    return {key: shallow.get(key, value) for key, value in arch.items()}


def build(cls, **kwargs):
    torch.manual_seed(0)
    return cls(**{'arch': shallow_arch(cls), **kwargs})


def all_indices(cls, **kwargs):
    """Every value that `out_indices` can have with one index, ascending."""
    with torch.device('meta'):
        return range(len(build(cls, **kwargs).level_channels))


def image(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=dtype)


def maps_and_gradients(model, x):
    """Return maps and gradients of their random projection.

    Norms would make a sum of squares constant.
    """
    outs = model(x)
    sum((out * image(*out.shape)).sum() for out in outs).backward()
    return outs, {name: p.grad for name, p in model.named_parameters()}


def gradients(model, x):
    return maps_and_gradients(model, x)[1]


def rms(x):
    return x.float().square().mean().sqrt()


@pytest.mark.parametrize('cls, preset', ARCHS)
def test_maps_have_the_size_of_their_stride(cls, preset):
    with torch.device('meta'):
        cls(preset)
        arch = shallow_arch(cls, preset)
        model = cls(arch, out_indices=tuple(all_indices(cls, arch=arch)))
        strides = [224 // out.shape[-1] for out in model(torch.empty(1, 3, 224, 224))]
        for H, W in SHAPES if preset == next(iter(cls.arch_zoo)) else ODD_SHAPES:
            outs = model(torch.empty(2, 3, H, W))
            for out, stride in zip(outs, strides, strict=True):
                assert out.shape[0] == 2
                for size, side in zip(out.shape[-2:], (H, W), strict=True):
                    assert side // stride <= size <= -(-side // stride), (H, W)


@every_backbone
@pytest.mark.parametrize('shape', [(32, 32), (33, 47), (224, 224)], ids=str)
def test_odd_and_tiny_images(cls, shape):
    model = build(cls)
    outs = model(image(1, 3, *shape))
    assert all(out.isfinite().all() for out in outs)
    assert all(
        g.isfinite().all() for g in gradients(model, image(1, 3, *shape)).values()
    )


@every_backbone
def test_one_pixel_of_the_last_stride(cls):
    model = build(cls).double()
    stride = 224 // model(image(1, 3, 224, 224, dtype=torch.float64))[-1].shape[-1]
    x = image(1, 3, stride, stride, dtype=torch.float64)
    assert model(x)[-1].shape[-2:] == (1, 1)
    assert all(g.isfinite().all() for g in gradients(model, x).values())


@every_backbone
def test_empty_batch(cls):
    """Give maps of the usual size, and gradients that change nothing."""
    model = build(cls)
    outs, grads = maps_and_gradients(model, image(0, 3, 33, 47))
    expected = [(0, *out.shape[1:]) for out in model(image(1, 3, 33, 47))]
    assert [out.shape for out in outs] == expected
    # PyTorch's attention leaves the gradient of its bias None.
    assert not any(g.any() for name, g in grads.items() if g is not None), grads.keys()
    assert sum(g is None for g in grads.values()) <= 2


@every_backbone
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_on_a_cpu(cls, dtype):
    expected = build(cls)(image(2, 3, 33, 47))
    model, x = build(cls).to(dtype), image(2, 3, 33, 47).to(dtype)
    outs, grads = maps_and_gradients(model, x)
    for out, ref in zip(outs, expected, strict=True):
        assert out.dtype == dtype
        assert rms(out - ref) < BF16_RMS_ERROR / 4 * rms(ref)
    assert all(g.dtype == dtype and g.isfinite().all() for g in grads.values())


@every_backbone
def test_images_of_the_least_side(cls):
    model = build(cls)
    side = model.min_side
    for shape in ((side, side), (side, 64), (64, side)):
        assert all(out.isfinite().all() for out in model(image(1, 3, *shape)))


WRONG_IMAGES = {
    'uint8': lambda side: image(1, 3, 64, 64).byte(),
    'other-precision': lambda side: image(1, 3, 64, 64).half(),
    'channels': lambda side: image(1, 4, 64, 64),
    'channels-last': lambda side: image(1, 64, 64, 3),
    'three-dimensions': lambda side: image(3, 64, 64),
    'five-dimensions': lambda side: image(1, 3, 2, 64, 64),
    'low': lambda side: image(1, 3, side - 1, 64),
    'narrow': lambda side: image(1, 3, 64, side - 1),
}


@every_backbone
@pytest.mark.parametrize('make', WRONG_IMAGES.values(), ids=WRONG_IMAGES)
def test_other_images_are_refused(cls, make):
    model = build(cls)
    x = make(model.min_side)
    got = f'got {tuple(x.shape)} of {str(x.dtype)[6:]}'
    accepted = f'(B, 3, H, W), sides of {model.min_side} or more, and the dtype float32'
    message = f'{cls.__name__}: .*{re.escape(accepted)}.*{re.escape(got)}'
    compiled = torch.compile(model, backend='eager')
    for call in (model, compiled):
        with pytest.raises(ValueError, match=message):
            call(x)


@pytest.mark.slow
@every_backbone
def test_image_of_a_detector(cls):
    with torch.no_grad():
        assert all(o.isfinite().all() for o in build(cls)(image(1, 3, 800, 1333)))


@every_backbone
def test_every_parameter_has_a_gradient_whatever_is_returned(cls):
    """Distributed training then needs no search for unused parameters."""
    indices = all_indices(cls)
    ends = tuple(sorted({indices[0], indices[-1]}))
    for out_indices in [*indices, tuple(indices), ends, -1]:
        model = build(cls, out_indices=out_indices)
        missing = [
            n for n, g in gradients(model, image(1, 3, 32, 32)).items() if g is None
        ]
        assert not missing, out_indices


@every_backbone
@pytest.mark.parametrize('frozen_stages', [-1, 1], ids=['all', 'frozen-1'])
def test_checkpointing_gives_the_same_gradients(cls, frozen_stages):
    expected, actual = (
        gradients(
            build(cls, with_cp=with_cp, frozen_stages=frozen_stages).double(),
            image(2, 3, 33, 47, dtype=torch.float64),
        )
        for with_cp in (False, True)
    )
    assert_close(actual, expected)


@every_backbone
def test_checkpointing_with_drop_path_repeats_the_drops(cls):
    grads = []
    for with_cp in (False, True):
        model = build(cls, with_cp=with_cp, drop_path_rate=0.5).double().train()
        torch.manual_seed(2)
        grads.append(gradients(model, image(4, 3, 32, 32, dtype=torch.float64)))
    assert_close(*grads)


@every_backbone
def test_frozen_stages(cls):
    for frozen_stages in range(-1, len(all_indices(cls)) + 1):
        model = build(cls, frozen_stages=frozen_stages).train().eval().train()
        for index, part in enumerate([model.stem, *model.levels]):
            trained = index > frozen_stages
            assert all(m.training == trained for m in part.modules())
            assert all(p.requires_grad == trained for p in part.parameters())
        if not any(param.requires_grad for param in model.parameters()):
            continue  # without norms after the last stage
        grads = gradients(model, image(1, 3, 32, 32))
        for name, param in model.named_parameters():
            assert (grads[name] is None) == (not param.requires_grad), name


@every_backbone
def test_frozen_drop_paths_are_off(cls):
    last = len(all_indices(cls))
    model = build(cls, frozen_stages=last, drop_path_rate=0.9)
    x = image(2, 3, 32, 32)
    expected = model.eval()(x)
    assert_close(model.train()(x), expected)
    trained = build(cls, drop_path_rate=0.9)
    assert not torch.equal(trained.train()(x)[-1], trained.eval()(x)[-1])


@every_backbone
@pytest.mark.parametrize(
    'kwargs, error, message',
    [
        (dict(arch='huge'), ValueError, "'huge'"),
        (dict(arch=dict(depth=50)), ValueError, 'depth'),
        (dict(num_layers=50), TypeError, 'num_layers'),
        (dict(norm_cfg=dict(type='BN')), TypeError, 'norm_cfg'),
        (dict(out_indices=()), ValueError, 'out_indices'),
        (dict(out_indices=(0, 0)), ValueError, 'ascend'),
        (dict(out_indices=(99,)), ValueError, '99'),
        (dict(frozen_stages=99), ValueError, '99'),
        (dict(frozen_stages=-2), ValueError, '-2'),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else '',
)
def test_wrong_arguments(cls, kwargs, error, message):
    with torch.device('meta'), pytest.raises(error, match=message):
        MODELS.build(dict(type=cls, **kwargs))


@every_backbone
def test_pretrained_weights_override_the_constructors(cls, tmp_path):
    source = build(cls)
    for param in source.parameters():
        torch.nn.init.normal_(param)
    path = tmp_path / 'weights.pth'
    torch.save({'state_dict': source.state_dict()}, path)
    init_cfg = dict(type='Pretrained', checkpoint=str(path))
    cfg = dict(type=cls, arch=shallow_arch(cls), init_cfg=init_cfg)
    model = MODELS.build(cfg)
    model.init_weights()
    assert_close(model.state_dict(), source.state_dict())


@every_backbone
def test_init_weights_without_init_cfg_changes_nothing(cls):
    model = build(cls)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.init_weights()
    assert_close(model.state_dict(), before)


@every_backbone
def test_state_dict_round_trip(cls):
    model, other = build(cls), build(cls)
    for param in other.parameters():
        torch.nn.init.normal_(param)
    other.load_state_dict(model.state_dict(), strict=True)
    assert_close(other(image(1, 3, 32, 32)), model(image(1, 3, 32, 32)))


@every_backbone
def test_autocast(cls):
    model, x = build(cls), image(2, 3, 33, 47)
    expected = model(x)
    with torch.autocast('cpu', torch.bfloat16):
        outs = model(x)
        grads = gradients(model, x)
    for out, ref in zip(outs, expected, strict=True):
        assert rms(out - ref) < BF16_RMS_ERROR * rms(ref)
    assert all(g.isfinite().all() for g in grads.values())


@every_backbone
def test_memory_format_of_the_image_does_not_matter(cls):
    model, x = build(cls).double(), image(2, 3, 33, 47, dtype=torch.float64)
    assert_close(model(x.to(memory_format=torch.channels_last)), model(x))


@every_backbone
@torch.no_grad()
def test_four_threads_share_a_model(cls):
    model = build(cls).eval()
    images = [image(1, 3, *shape) for shape in ((32, 32), (33, 47), (64, 40))]
    expected = [build(cls).eval()(x) for x in images]

    @torch.no_grad()
    def run(first):
        order = [(first + i) % len(images) for i in range(2 * len(images))]
        return [(i, model(images[i])) for i in order]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(run, range(4)):
            for i, maps in results:
                assert_close(maps, expected[i])


@every_backbone
def test_images_of_a_batch_do_not_mix(cls):
    model, x = build(cls).double(), image(2, 3, 33, 47, dtype=torch.float64)
    singles = [model(one[None]) for one in x]
    assert_close(model(x), tuple(map(torch.cat, zip(*singles, strict=True))))
