"""Channels, strides and maps of any level, as users of timm expect them."""

import pytest
import torch
from test_backbones import (
    BACKBONES,
    all_indices,
    build,
    every_backbone,
    gradients,
    image,
)
from test_with_cp import counted
from torch.testing import assert_close

from mmattn.models import PVT, MaiT, PVTv2
from mmattn.models.backbones import pvt_v2
from mmattn.models.layers import fit_image_channels


def build_all(cls, **kwargs):
    """Build a shallow network that returns the maps of all levels, with any weights."""
    model = build(cls, out_indices=tuple(all_indices(cls)), **kwargs)
    for param in model.parameters():
        torch.nn.init.normal_(param, std=0.1)
    return model.eval()


@every_backbone
def test_channels_and_strides_are_those_of_the_maps(cls):
    indices = all_indices(cls)
    with torch.device('meta'):
        for out_indices in (tuple(indices), -1, 0):
            model = build(cls, out_indices=out_indices)
            maps = model(torch.empty(1, 3, 224, 224))
            assert model.out_channels == tuple(m.shape[1] for m in maps)
            assert model.strides == tuple(224 // m.shape[3] for m in maps)
            info = model.feature_info
            assert info.channels() == list(model.out_channels)
            assert info.reduction() == list(model.strides)


@every_backbone
def test_modules_of_the_levels_return_their_maps(cls):
    model, x = build_all(cls), image(1, 3, 32, 48)
    seen = {}
    for name in model.feature_info.get('module', list(all_indices(cls))):
        model.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: seen.update({name: out})
        )
    maps = model.forward_intermediates(x, intermediates_only=True)
    assert len(seen) == len(maps) == len(all_indices(cls))
    for features, out in zip(maps, seen.values(), strict=True):
        if out.dim() == 3:  # tokens, after special ones
            out = out[:, out.shape[1] - features[0, 0].numel() :]
        expected = features.flatten(2).transpose(1, 2)
        assert_close(out.reshape(expected.shape), expected)


@every_backbone
def test_intermediates_with_norms_are_the_output(cls):
    model, x = build_all(cls), image(1, 3, 32, 48)
    expected = model(x)
    final, maps = model.forward_intermediates(x, norm=True)
    assert_close(tuple(maps), expected)
    assert_close(final, expected[-1])
    final, (first,) = model.forward_intermediates(x, [0], norm=True)
    assert_close((first, final), (expected[0], expected[-1]))
    final, (first,) = model.forward_intermediates(x, [0], norm=True, stop_early=True)
    assert_close((first, final), (expected[0], expected[0]))
    raw = model.forward_intermediates(x, 1, intermediates_only=True)
    has_norm = model.ends_in_norm() and cls is not PVTv2  # its norm is in the stage
    assert len(raw) == 1 and torch.equal(raw[0], expected[-1]) != has_norm


def test_intermediates_run_no_more_levels_than_they_need():
    model = build_all(MaiT)
    runs = counted(model.blocks)
    model.forward_intermediates(image(1, 3, 32, 32), [0], intermediates_only=True)
    assert list(runs.values()) == [1, 0]


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        (dict(indices=5), r'indices must be a number in \[1, 4\].*got 5'),
        (dict(indices=0), 'got 0'),
        (dict(indices=[]), 'got'),
        (dict(indices=[4]), r'in \[-4, 3\], got \[4\]'),
        (dict(output_fmt='NLC'), "got 'NLC'"),
    ],
    ids=str,
)
def test_wrong_requests_for_intermediates(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(PVTv2).forward_intermediates(image(1, 3, 32, 32), **kwargs)


def test_a_class_token_is_no_map():
    with pytest.raises(ValueError, match="out_type 'featmap', got 'NCHW' and 'cls_tok"):
        build(PVT, out_type='cls_token').forward_intermediates(image(1, 3, 32, 32))


@every_backbone
@pytest.mark.parametrize('keep_norms', [True, False], ids=['norms', 'raw'])
def test_a_pruned_network_keeps_the_maps_below(cls, keep_norms):
    model, x = build_all(cls), image(2, 3, 32, 48)
    middle = len(all_indices(cls)) // 2
    options = dict(norm=keep_norms, intermediates_only=True)
    (expected,) = model.forward_intermediates(x, [middle], **options)
    model.prune(middle, keep_norms)
    with torch.device('meta'):
        alone = build(cls, out_indices=tuple(range(middle + 1)))
    if keep_norms:
        kept = {name for name, _ in model.named_parameters()}
        assert kept <= {name for name, _ in alone.named_parameters()}
    else:
        assert not model.out_norms and model.ends_in_norm() == (cls is PVTv2)
    assert len(model.levels()) == middle + 1
    assert model.out_indices == tuple(range(middle + 1))
    (actual,) = model.forward_intermediates(x, [middle], **options)
    assert_close(actual, expected)


@every_backbone
@pytest.mark.parametrize('in_channels', [1, 6])
def test_images_of_other_channels(cls, in_channels):
    model, rgb = build(cls, in_channels=in_channels), build(cls)
    stem = model.get_submodule(model.stem_conv)
    assert stem.in_channels == model.in_channels == in_channels
    added = (in_channels - 3) * stem.weight[:, 0].numel()
    count = [sum(p.numel() for p in m.parameters()) for m in (model, rgb)]
    assert count[0] - count[1] == added
    x = image(1, 1, 32, 32)
    model.load_state_dict(rgb.state_dict())
    # The weights are those of RGB, so a gray image gives the same maps.
    gray = model(x.expand(-1, in_channels, -1, -1))
    assert_close(gray, rgb(x.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('channels', [1, 2, 3, 4, 7])
def test_weights_are_adapted_as_timm_does(channels):
    from timm.models._manipulate import adapt_input_conv

    weight = torch.randn(5, 3, 2, 2)
    expected = adapt_input_conv(channels, weight)
    assert_close(fit_image_channels(weight, channels), expected)
    assert fit_image_channels(weight.half(), channels).dtype == torch.float16
    assert fit_image_channels(weight[:, :2], channels).shape[1] == 2


def test_official_weights_are_renamed_before_they_are_adapted():
    rgb, model = build(PVTv2), build(PVTv2, in_channels=4)
    weights = pvt_v2.to_official_state_dict(rgb.state_dict())
    model.load_state_dict(weights)
    loaded = model.get_submodule(model.stem_conv).weight
    own = rgb.get_submodule(rgb.stem_conv).weight
    assert_close(loaded[:, 3], own[:, 0] * 3 / 4)


def test_other_channels_than_the_weights_are_reported():
    with pytest.raises(
        RuntimeError, match=r'size mismatch for patch_embed.proj.weight'
    ):
        build(PVTv2).load_state_dict(build(PVTv2, in_channels=4).state_dict())


@every_backbone
def test_an_image_has_channels(cls):
    with pytest.raises(ValueError, match='in_channels must be 1 or more, got 0'):
        build(cls, in_channels=0)


@pytest.mark.parametrize('cls', BACKBONES[:2], ids=lambda cls: cls.__name__)
def test_checkpointing_is_switched(cls):
    model = build(cls)
    runs = counted(m for m in model.modules() if 'Block' in type(m).__name__)
    for enable, expected in ((True, 2), (False, 3)):
        model.set_grad_checkpointing(enable)
        gradients(model, image(1, 3, 32, 32))
        assert set(runs.values()) == {expected}
