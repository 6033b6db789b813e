"""Channels, strides and maps of any level, and images of other channels."""

import pytest
import torch
from backbones import counted
from test_backbones import (
    all_indices,
    build,
    every_backbone,
    image,
)
from torch.testing import assert_close

from mmattn.models import PVTv2
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


@every_backbone
def test_levels_are_the_maps_without_their_norms(cls):
    model, x = build_all(cls), image(1, 3, 32, 48)
    indices, outs = all_indices(cls), model(x)
    raw = model.forward_levels(x, indices)
    assert_close(tuple(map(model.to_output, raw, indices)), outs)
    for level, out in zip(raw, outs, strict=True):
        is_same = torch.equal(level.movedim(-1, 1), out)
        assert is_same == (len(model.out_norms) == 0)
    above = [m for level in model.levels[1:] for m in level.modules()]
    runs = counted(above)
    assert_close(model.forward_levels(x, indices[:1]), raw[:1])
    assert not any(runs.values())


@every_backbone
@pytest.mark.parametrize('out_indices', [-1, 0], ids=['whole', 'cut'])
def test_depth_grows_along_the_levels(cls, out_indices):
    with torch.device('meta'):
        model = build(cls, out_indices=out_indices)
    depths = {name: model.get_layer_depth(name) for name, _ in model.named_parameters()}
    ends = [
        {depth for name, (depth, _) in depths.items() if name.startswith(f'{part}.')}
        for part in ('stem', *(f'stages.{i}' for i in range(4)), 'blocks', 'out_norms')
    ]
    flat = [depth for part in ends for depth in sorted(part)]
    assert flat[0] == 0 and flat == sorted(set(flat))
    last = model.get_layer_depth('head.fc.weight', 'backbone.')[0]
    assert set(range(last)) <= set(flat) <= set(range(last + 1))
    assert {count for _, count in depths.values()} == {last + 1}


@every_backbone
@pytest.mark.parametrize('in_channels', [1, 6])
def test_images_of_other_channels(cls, in_channels):
    model, rgb = build(cls, in_channels=in_channels), build(cls)
    stem = model.stem.proj
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
    loaded = model.stem.proj.weight
    own = rgb.stem.proj.weight
    assert_close(loaded[:, 3], own[:, 0] * 3 / 4)


def test_other_channels_than_the_weights_are_reported():
    with pytest.raises(RuntimeError, match='size mismatch for stem.proj.weight'):
        build(PVTv2).load_state_dict(build(PVTv2, in_channels=4).state_dict())


@every_backbone
def test_an_image_has_channels(cls):
    with pytest.raises(ValueError, match='in_channels must be 1 or more, got 0'):
        build(cls, in_channels=0)
