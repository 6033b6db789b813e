"""Promises of every registered backbone, whatever it computes."""

import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from backbones import (
    BACKBONES,
    SINGLE,
    all_indices,
    build,
    counted,
    every_backbone,
    gradients,
    image,
    maps_and_gradients,
    shallow_arch,
)
from layer_checks import randomize
from torch import nn
from torch.testing import assert_close

from mmattn.models import PVT, PVTv2
from mmattn.models.backbones import pvt_v2
from mmattn.models.backbones.base_backbone import channels_first
from mmattn.registry import MODELS

BF16_RMS_ERROR = 0.1  # relative, of a whole network


def rms(x):
    return x.float().square().mean().sqrt()


def blocks_of(model):
    return [m for m in model.modules() if 'Block' in type(m).__name__]


@every_backbone
def test_maps_have_the_size_of_their_stride(cls):
    """Run every preset, and the last one on a wide image, for all maps and for one."""
    with torch.device('meta'):
        for preset in cls.arch_zoo:
            arch = shallow_arch(cls, preset)
            model = cls(arch, out_indices=tuple(all_indices(cls, preset)))
            maps = model(torch.empty(1, 3, 224, 224))
            assert model.out_channels == tuple(m.shape[1] for m in maps)
            assert model.strides == tuple(224 // m.shape[3] for m in maps)
        H, W = 33, 1333
        wide = torch.empty(2, 3, H, W)
        maps = model(wide)
        for out, stride in zip(maps, model.strides, strict=True):
            assert out.shape[0] == 2
            for size, side in zip(out.shape[-2:], (H, W), strict=True):
                assert side // stride <= size <= -(-side // stride)
        for index in (-1, 0):
            one = cls(arch, out_indices=index)
            assert [out.shape for out in one(wide)] == [maps[index].shape]
            assert one.out_channels == (model.out_channels[index],)
            assert one.strides == (model.strides[index],)


@every_backbone
def test_odd_and_tiny_images(cls):
    model = build(cls)
    stride, least = model.strides[-1], model.min_side
    for shape in ((33, 47), (stride, stride), (least, 64), (64, least)):
        outs, grads = maps_and_gradients(model, image(1, 3, *shape))
        assert all(out.isfinite().all() for out in outs), shape
        assert all(g.isfinite().all() for g in grads.values()), shape
        if shape == (stride, stride):
            assert outs[-1].shape[-2:] == (1, 1)


@every_backbone
def test_maps_that_need_gradients_are_contiguous(cls):
    """On CPUs convolutions of other maps have slow gradients. No others are copied.

    The gradients become contiguous with channels last, as those of blocks are.
    """
    model, x = build(cls), image(1, 3, 64, 96)
    maps = model.forward_levels(x, model.out_indices)
    outs = [channels_first(x) for x in maps]
    grads = torch.autograd.grad(sum(out.square().sum() for out in outs), maps)
    assert all(x.is_contiguous() for x in grads)
    assert all(out.is_contiguous() for out in model(x))
    with torch.no_grad():
        assert not any(out.is_contiguous() for out in model(x))


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
def test_reduced_precision(cls):
    model, x = build(cls), image(2, 3, 33, 47)
    expected = model(x)
    with torch.autocast('cpu', torch.bfloat16):
        outs, grads = maps_and_gradients(model, x)
    assert len({out.dtype for out in outs}) == 1
    for out, ref in zip(outs, expected, strict=True):
        assert rms(out - ref) < BF16_RMS_ERROR * rms(ref)
    assert all(g.isfinite().all() for g in grads.values())
    for dtype in (torch.bfloat16, torch.float16):
        outs, grads = maps_and_gradients(build(cls).to(dtype), x.to(dtype))
        for out, ref in zip(outs, expected, strict=True):
            assert out.dtype == dtype
            assert rms(out - ref) < BF16_RMS_ERROR / 4 * rms(ref)
        assert all(g.dtype == dtype and g.isfinite().all() for g in grads.values())


@every_backbone
def test_other_images_are_refused(cls):
    model = build(cls)
    side = model.min_side
    compiled = torch.compile(model, backend='eager')
    for x in (
        image(1, 3, 64, 64).byte(),
        image(1, 3, 64, 64).half(),
        image(1, 64, 64, 3),
        image(3, 64, 64),
        image(1, 3, 2, 64, 64),
        image(1, 3, side - 1, 64),
        image(1, 3, 64, side - 1),
    ):
        got = f'got {tuple(x.shape)} of {str(x.dtype)[6:]}'
        accepted = f'(B, 3, H, W), sides of {side} or more, and the dtype float32'
        message = f'{cls.__name__}: .*{re.escape(accepted)}.*{re.escape(got)}'
        for call in (model, compiled) if cls is PVT else (model,):
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
    for out_indices in [*indices, tuple(indices), ends]:
        model = build(cls, out_indices=out_indices)
        grads = gradients(model, image(1, 3, 32, 32))
        assert not [n for n, g in grads.items() if g is None], out_indices


@every_backbone
def test_checkpointing_gives_the_same_gradients(cls):
    """Each block runs again, with the same drops, unless it is frozen."""
    for kwargs in (dict(frozen_stages=1), dict(drop_path_rate=0.5)):
        results = []
        for with_cp in (False, True):
            model = build(cls, with_cp=with_cp, **kwargs).double().train()
            runs = counted(blocks_of(model))
            torch.manual_seed(2)
            results.append(gradients(model, image(4, 3, 33, 47, dtype=torch.float64)))
            if 'drop_path_rate' in kwargs:
                assert runs and set(runs.values()) == {1 + with_cp}
        assert_close(*results)


@every_backbone
def test_gradients_of_each_image_by_torch_func(cls):
    model = build(cls).double().eval()
    x = image(2, 3, 33, 47, dtype=torch.float64)
    directions = [image(*out.shape) for out in model(x[:1])]

    def loss(parameters, x):
        outs = torch.func.functional_call(model, parameters, (x[None],))
        return sum((out * d).sum() for out, d in zip(outs, directions, strict=True))

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))
    grads = each(dict(model.named_parameters()), x)
    for i in range(2):
        model.zero_grad()
        actual = {name: grad[i] for name, grad in grads.items()}
        assert_close(actual, gradients(model, x[i : i + 1]), **SINGLE)


@every_backbone
def test_gradient_of_the_image_by_torch_func(cls):
    """The parameters, which no transform sees, require gradients."""
    model, x = build(cls).double().eval(), image(1, 3, 33, 47, dtype=torch.float64)
    maps, backward = torch.func.vjp(model, x)
    (grad,) = backward(tuple(image(*out.shape).double() for out in maps))
    maps_and_gradients(model, x.requires_grad_())
    assert_close(grad, x.grad, **SINGLE)


@every_backbone
def test_frozen_parts_stay_in_eval_mode(cls):
    last = len(all_indices(cls))
    model = build(cls, frozen_stages=last, drop_path_rate=0.9)
    x = image(2, 3, 32, 32)
    expected = model.eval()(x)
    assert_close(model.train()(x), expected)
    assert not any(block.training for block in blocks_of(model))
    trained = build(cls, drop_path_rate=0.9)
    assert not torch.equal(trained.train()(x)[-1], trained.eval()(x)[-1])
    half = build(cls, frozen_stages=0).train()
    assert all(block.training for block in blocks_of(half))


@every_backbone
def test_wrong_arguments(cls):
    for kwargs, error, message in (
        (dict(arch='huge'), ValueError, "'huge'"),
        (dict(arch=dict(depth=50)), ValueError, 'depth'),
        (dict(num_layers=50), TypeError, 'num_layers'),
        (dict(norm_cfg=dict(type='BN')), TypeError, 'norm_cfg'),
        (dict(in_channels=0), ValueError, 'in_channels must be 1 or more, got 0'),
        (dict(out_indices=()), ValueError, 'out_indices'),
        (dict(out_indices=(0, 0)), ValueError, 'ascend'),
        (dict(out_indices=(99,)), ValueError, '99'),
        (dict(frozen_stages=99), ValueError, '99'),
        (dict(frozen_stages=-2), ValueError, '-2'),
        (dict(compile='inductor'), ValueError, "'inductor'"),
        (dict(compile=None), ValueError, 'None'),
        (dict(compile=dict(fast=True)), TypeError, 'fast'),
    ):
        with torch.device('meta'), pytest.raises(error, match=message):
            MODELS.build(dict(type=cls, **kwargs))


@every_backbone
def test_loaded_weights_override_the_constructors(cls, tmp_path):
    source = randomize(build(cls))
    path = tmp_path / 'weights.pth'
    torch.save({'state_dict': source.state_dict()}, path)
    init_cfg = dict(type='Pretrained', checkpoint=str(path))
    cfg = dict(type=cls, arch=shallow_arch(cls))
    loaded = MODELS.build(cfg | dict(init_cfg=init_cfg))
    loaded.init_weights()
    assert_close(loaded.state_dict(), source.state_dict())
    assert_close(loaded(image(1, 3, 32, 32)), source(image(1, 3, 32, 32)))
    plain = MODELS.build(cfg)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    plain.init_weights()
    assert_close(plain.state_dict(), before)


@every_backbone
def test_images_do_not_mix_and_may_have_channels_last(cls):
    model, x = build(cls).double(), image(2, 3, 33, 47, dtype=torch.float64)
    singles = [model(one[None]) for one in x]
    expected = tuple(map(torch.cat, zip(*singles, strict=True)))
    assert_close(model(x.to(memory_format=torch.channels_last)), expected)


def takes(cls, argument):
    return any(argument in inspect.signature(c).parameters for c in cls.mro()[:2])


@pytest.mark.parametrize('cls', [cls for cls in BACKBONES if takes(cls, 'out_norm')])
def test_maps_end_in_norms_if_asked(cls):
    x, indices = image(1, 3, 33, 47), tuple(all_indices(cls))
    normed = build(cls, out_indices=indices)(x)
    raw = build(cls, out_indices=indices, out_norm=False)(x)
    for out, other in zip(normed, raw, strict=True):
        assert other.mean(1).abs().max() > 1e-4
        expected = nn.functional.layer_norm(other.movedim(1, -1), out.shape[1:2])
        assert_close(out, expected.movedim(-1, 1), atol=1e-2, rtol=0)


@every_backbone
def test_levels_are_the_maps_without_their_norms(cls):
    """No level above those asked for is run."""
    indices, x = all_indices(cls), image(1, 3, 32, 48)
    model = randomize(build(cls, out_indices=tuple(indices)), 0.1)
    outs = model(x)
    raw = model.forward_levels(x, indices)
    assert_close(tuple(map(model.to_output, raw, indices)), outs)
    for level, out in zip(raw, outs, strict=True):
        is_same = torch.equal(level.movedim(-1, 1), out)
        assert is_same == (len(model.out_norms) == 0)
    runs = counted(b for level in model.levels[1:] for b in blocks_of(level))
    assert_close(model.forward_levels(x, indices[:1]), raw[:1])
    assert not any(runs.values())


@pytest.mark.parametrize('cls', [cls for cls in BACKBONES if 'LiSA' in cls.__name__])
@torch.no_grad()
def test_four_threads_share_a_model(cls):
    """These keep spectra."""
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
def test_zero_padding_does_not_blow_up_gradients(cls):
    """Detectors pad images with zeros; a norm of exact zeros multiplies by 1000."""
    model, images = build(cls), image(2, 3, 64, 64)
    padded = images.clone()
    padded[1, :, 32:] = 0
    norms = []
    for x in (images, padded):
        model.zero_grad()
        sum((out * out.detach().cos()).sum() for out in model(x)).backward()
        norms.append(nn.utils.get_total_norm(p.grad for p in model.parameters()))
    assert norms[1] < 10 * norms[0]


@every_backbone
def test_images_of_other_channels(cls):
    """The weights are for RGB, so a gray image gives the same maps."""
    rgb, gray = build(cls), image(1, 1, 32, 32)
    expected = rgb(gray.expand(-1, 3, -1, -1))
    for in_channels in (1, 6):
        model = build(cls, in_channels=in_channels)
        model.load_state_dict(rgb.state_dict())
        out = model(gray.expand(-1, in_channels, -1, -1))
        assert_close(out, expected, rtol=1e-3, atol=1e-4)


def test_official_weights_are_renamed_before_they_are_adapted():
    rgb, model = build(PVTv2), build(PVTv2, in_channels=4)
    model.load_state_dict(pvt_v2.to_official_state_dict(rgb.state_dict()))
    loaded, own = (m.stem.proj.weight for m in (model, rgb))
    assert_close(loaded[:, 3], own[:, 0] * 3 / 4)
    with pytest.raises(RuntimeError, match=r'size mismatch for .*\.weight'):
        build(PVTv2).load_state_dict(build(PVTv2, in_channels=4).state_dict())
