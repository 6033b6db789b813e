"""The neck of multi-scale deformable attention, alone and as Mask2Former's decoder."""

import copy
from functools import partial

import pytest
import torch
from layer_checks import randn
from refusals import refuses
from torch import nn

from mmattn.models import (
    DeformableDETREncoder,
    Mask2FormerPixelDecoder,
    MSDeformAttnNeck,
)
from tools.benchmark.tolerances import assert_close

CHANNELS = [8, 12, 16, 20]
SIDES = [(23, 17), (12, 9), (6, 5), (3, 2)]
DIMS = 32
SMALL = dict(num_layers=2, num_heads=4, num_points=2, feedforward_channels=24)
ATTENTION = dict(embed_dims=DIMS, num_heads=4, num_levels=3, num_points=2, dropout=0.0)
FFN = dict(embed_dims=DIMS, feedforward_channels=24, ffn_drop=0.0)
ENCODER = dict(num_layers=2, layer_cfg=dict(self_attn_cfg=ATTENTION, ffn_cfg=FFN))
POSITIONS = dict(num_feats=DIMS // 2, normalize=True)


def feature_maps():
    return [
        randn(2, channels, *side, dtype=torch.float32, seed=level)
        for level, (channels, side) in enumerate(zip(CHANNELS, SIDES, strict=True))
    ]


@torch.no_grad()
def randomize(module):
    """Else attention weights are equal and offsets the same for all queries."""
    for parameter in module.parameters():
        parameter.add_(0.1 * randn(*parameter.shape))


def neck(**settings):
    torch.manual_seed(0)
    return MSDeformAttnNeck(CHANNELS, DIMS, encoder=SMALL, **settings)


def pixel_decoder(**settings):
    torch.manual_seed(0)
    settings = dict(encoder=ENCODER, positional_encoding=POSITIONS) | settings
    return Mask2FormerPixelDecoder(CHANNELS, DIMS, 40, **settings)


@pytest.mark.parametrize('num_encoder_levels', [1, 4])
def test_maps_keep_their_sides_and_order(num_encoder_levels):
    model = neck(num_encoder_levels=num_encoder_levels)
    assert [m.shape for m in model(feature_maps())] == [(2, DIMS, *s) for s in SIDES]
    with pytest.raises(ValueError, match='needs maps of'):
        model(feature_maps()[1:])


def test_further_levels_come_from_the_coarsest_input():
    """And through the encoder: they depend on the finest of its levels."""
    model, feats = neck(num_encoder_levels=5, num_outs=6), feature_maps()
    randomize(model)
    feats[1].requires_grad_()
    maps = model(feats)
    assert [m.shape[2:] for m in maps[:4]] == [torch.Size(side) for side in SIDES]
    assert [m.shape[2:] for m in maps[4:]] == [(2, 1), (1, 1)]
    maps[5].square().sum().backward()
    assert feats[1].grad.abs().sum() > 0
    assert [conv[0].in_channels for conv in model.extra_convs] == [CHANNELS[3], DIMS]


def test_encoder_is_mask2formers_unless_told():
    encoder = MSDeformAttnNeck(CHANNELS, DIMS).encoder
    assert len(encoder.layers) == 6 and encoder.position_offset == 0
    assert encoder.layers[0].dropout.p == 0
    settings = dict(type='mmattn.DeformableDETREncoder', num_layers=1)
    encoder = MSDeformAttnNeck(CHANNELS, DIMS, encoder=settings).encoder
    assert isinstance(encoder, DeformableDETREncoder)
    assert encoder.layers[0].dropout.p == 0.1 and encoder.position_offset == -0.5


test_settings_that_do_not_fit = refuses(
    partial(MSDeformAttnNeck, CHANNELS),
    (dict(num_encoder_levels=5), 'num_encoder_levels=5'),
    (dict(num_encoder_levels=0), 'num_encoder_levels=0'),
    (dict(num_outs=3), 'num_outs=3'),
    (dict(num_outs=7), 'num_outs=7'),
    (dict(out_channels=40), 'out_channels=40'),
    (dict(encoder=dict(num_levels=3)), "got {'num_levels': 3}"),
)


def test_autocast_has_no_say():
    decoder, feats = pixel_decoder(), feature_maps()
    expected, _ = decoder(feats)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        features, maps = decoder([feat.bfloat16() for feat in feats])
    assert {m.dtype for m in (features, *maps)} == {torch.float32}
    rounded, _ = decoder([feat.bfloat16().float() for feat in feats])
    assert_close('mask features', rounded, features)
    assert not torch.equal(features, expected)


def changed(key, value):
    encoder = copy.deepcopy(ENCODER)
    encoder['layer_cfg']['self_attn_cfg'][key] = value
    return dict(encoder=encoder)


test_settings_that_the_encoder_does_not_have = refuses(
    pixel_decoder,
    (changed('value_proj_ratio', 0.5), 'value_proj_ratio=0.5'),
    (changed('drop', 0.5), 'drop=0.5'),
    (changed('embed_dims', 64), 'embed_dims must be 32'),
    (changed('dropout', 0.1), 'ffn_drop must be 0.1'),
    (dict(encoder=ENCODER | dict(num_cp=1)), 'num_cp'),
    (dict(positional_encoding=dict(num_feats=16)), 'normalize=False'),
    (dict(norm_cfg=dict(type='BN')), 'norm_cfg must be'),
    (dict(num_outs=5), 'num_outs=5'),
)


def mmdet_pixel_decoder(**settings):
    from mmdet.models import layers
    from mmengine.config import ConfigDict

    settings = dict(encoder=ENCODER, positional_encoding=POSITIONS) | settings
    settings = ConfigDict(copy.deepcopy(settings), feat_channels=DIMS, out_channels=40)
    torch.manual_seed(0)
    theirs = layers.MSDeformAttnPixelDecoder(CHANNELS, **settings)
    theirs.init_weights()
    randomize(theirs)
    return theirs


@pytest.mark.parametrize('offset', [0.0, -0.5])
def test_is_mmdetections_with_its_weights(offset):
    """Outputs and the gradients of all inputs."""
    settings = dict(positional_encoding=POSITIONS | dict(offset=offset))
    theirs, ours = mmdet_pixel_decoder(**settings), pixel_decoder(**settings)
    ours.load_state_dict(theirs.state_dict())  # strict
    results = []
    for model in theirs, ours:
        feats = [feat.requires_grad_() for feat in feature_maps()]
        features, maps = model(feats)
        sum(m.square().mean() for m in (features, *maps)).backward()
        results.append([features, *maps, *(feat.grad for feat in feats)])
    for wanted, actual in zip(*results, strict=True):
        assert_close('map', wanted, actual)


def test_weights_load_under_any_prefix_and_ours_as_they_are():
    model = nn.ModuleDict(dict(head=nn.ModuleDict(dict(pixel_decoder=pixel_decoder()))))
    theirs = mmdet_pixel_decoder()
    prefix = 'head.pixel_decoder.'
    model.load_state_dict({prefix + k: v for k, v in theirs.state_dict().items()})
    weight = model['head']['pixel_decoder'].mask_features.weight
    assert torch.equal(weight, theirs.mask_feature.weight)
    randomize(model)
    again = pixel_decoder()
    again.load_state_dict(model['head']['pixel_decoder'].state_dict())
    assert torch.equal(again.mask_features.weight, weight)


def test_stands_in_a_config_as_neck():
    """Each of its parameters gets a gradient."""
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope('mmseg')
    settings = dict(out_channels=DIMS, encoder=SMALL, num_outs=5)
    neck = dict(type='mmattn.MSDeformAttnNeck', in_channels=[8, 16, 32, 64], **settings)
    maps = dict(in_channels=[DIMS] * 5, feature_strides=[4, 8, 16, 32, 64])
    head = dict(type='FPNHead', in_index=[*range(5)], channels=8, num_classes=3, **maps)
    backbone = dict(type='mmdet.ResNet', depth=18, base_channels=8)
    parts = dict(backbone=backbone, neck=neck, decode_head=head)
    model = MODELS.build(dict(type='EncoderDecoder', **parts))
    model(torch.randn(2, 3, 64, 96), mode='tensor').square().sum().backward()
    for name, parameter in model.neck.named_parameters():
        # Behind weights that start at 0.
        if not name.endswith(('level_embed', 'attention_weights.weight')):
            assert parameter.grad.any(), name
