"""Sizes, starts, configs and wrong use of Deformable DETR's encoder and decoder."""

import subprocess
import sys

import pytest
import torch
from deformable_detr_models import (
    KINDS,
    QUERIES,
    SHAPES,
    SMALL,
    build_branches,
    build_decoder,
    build_encoder,
    maps,
    padding_masks,
)
from torch.testing import assert_close

from mmattn.models import DeformableDETRDecoder, DeformableDETREncoder

PIXELS = sum(H * W for H, W in SHAPES)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_numbers_of_parameters():
    """The published counts are those of the layers alone; the sum is the model's."""
    with torch.device('meta'):
        decoders = {kind: DeformableDETRDecoder(**KINDS[kind]) for kind in KINDS}
        encoder = DeformableDETREncoder()
    assert count(encoder.layers) == 4_541_184
    assert count(encoder) == count(encoder.layers) + 4 * 256
    own = {
        'one-stage': 300 * 512 + 2 * 257,
        'refine': 300 * 512 + 2 * 257,
        'two-stage': 256 * 257 + 512 + 512 * 513 + 1024,
    }
    for kind, decoder in decoders.items():
        assert count(decoder.layers) == 6_123_264
        assert count(decoder) == count(decoder.layers) + own[kind]
    projections = (512 + 1024 + 2048 + 9 * 2048) * 256 + 4 * 3 * 256
    classes, boxes = 257 * 91, 2 * 257 * 256 + 257 * 4
    totals = {  # with ResNet-50's convolutions, which are 23,454,912
        'one-stage': (40_069_665, classes + boxes),
        'refine': (40_849_660, 6 * (classes + boxes)),
        'two-stage': (41_181_529, 7 * (classes + boxes)),
    }
    for kind, (total, heads) in totals.items():
        model = count(encoder) + count(decoders[kind]) + projections + heads
        assert model + 23_454_912 == total


def test_encoder_starts_as_the_official_one():
    torch.manual_seed(0)
    encoder = DeformableDETREncoder(64, 1, 8, 4, 4, 128)
    assert abs(encoder.level_embed.std().item() - 1) < 0.2
    layer = encoder.layers[0]
    for linear in (layer.linear1, layer.linear2):
        bound = (6 / (64 + 128)) ** 0.5
        assert 0.95 * bound < linear.weight.abs().max() <= bound
    assert not layer.self_attn.sampling_offsets.weight.any()
    assert layer.self_attn.sampling_offsets.bias.abs().amax() == 4


def test_decoder_starts_as_the_official_one():
    torch.manual_seed(0)
    settings = dict(SMALL, embed_dims=64, num_heads=8, num_queries=50)
    decoder = DeformableDETRDecoder(**settings)
    assert abs(decoder.query_embed.weight.std().item() - 1) < 0.05
    assert not decoder.reference_points.bias.any()
    attention = decoder.layers[0].self_attn
    for weight, sides in (
        (decoder.reference_points.weight, 64 + 2),
        (attention.in_proj_weight, 64 + 3 * 64),
        (attention.out_proj.weight, 64 + 64),
    ):
        bound = (6 / sides) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
    assert not decoder.layers[0].cross_attn.sampling_offsets.weight.any()


@pytest.mark.parametrize(
    'name, build, settings',
    [
        ('DeformableDETREncoder', build_encoder, {}),
        ('DeformableDETRDecoder', build_decoder, dict(num_queries=QUERIES)),
    ],
    ids=['encoder', 'decoder'],
)
def test_configs_build_and_load_it(name, build, settings, tmp_path):
    pytest.importorskip('mmengine')
    from mmattn.registry import MODELS

    saved, path = build().float(), str(tmp_path / 'weights.pth')
    torch.save(saved.state_dict(), path)
    init_cfg = dict(type='Pretrained', checkpoint=path)
    cfg = dict(type=f'mmattn.{name}', init_cfg=init_cfg, **SMALL, **settings)
    module = MODELS.build(cfg)
    assert not torch.equal(module.layers[0].norm1.bias, saved.layers[0].norm1.bias)
    module.init_weights()
    assert_close(module.state_dict(), saved.state_dict(), rtol=0, atol=0)


@pytest.mark.slow
def test_they_need_no_mm_package():
    code = (
        'import sys\n'
        "for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg'): sys.modules[name] = None\n"
        'import torch\n'
        'from mmattn.models import DeformableDETRDecoder, DeformableDETREncoder\n'
        'feats = [torch.randn(1, 8, H, W) for H, W in ((5, 7), (3, 4))]\n'
        'feats = DeformableDETREncoder(8, 1, 2, 2, 2, 16)(feats)\n'
        'out = DeformableDETRDecoder(8, 3, 1, 2, 2, 2, 16)(feats)\n'
        'assert out.hidden_states.shape == (1, 1, 3, 8)\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(embed_dims=6), 'embed_dims=6'),
        (dict(num_heads=3), '8 channels do not split into 3 heads'),
        (dict(num_levels=0), 'num_levels=0'),
        (dict(num_layers=0), 'num_layers=0'),
    ],
    ids=str,
)
@pytest.mark.parametrize('build', [build_encoder, build_decoder])
def test_wrong_settings(build, kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_wrong_settings_of_decoders():
    with pytest.raises(ValueError, match='num_queries=0'):
        build_decoder(num_queries=0)
    with pytest.raises(ValueError, match='with_box_refine=False'):
        build_decoder(as_two_stage=True)


@pytest.mark.parametrize('build', [build_encoder, build_decoder])
def test_wrong_maps_and_masks(build):
    module, feats, masks = build(), maps(), padding_masks()
    for wrong in (feats[:2], maps(C=4), [feats[0][:1], *feats[1:]], []):
        with pytest.raises(ValueError, match='needs 3 maps'):
            module(wrong)
    for wrong in (masks[:2], masks[::-1], [mask.float() for mask in masks]):
        with pytest.raises(ValueError, match='masks must be bool'):
            module(feats, wrong)


def test_wrong_branches():
    feats, (classify, boxes) = maps(), build_branches('two-stage')
    with pytest.raises(ValueError, match='2 reg_branches, got None'):
        build_decoder('refine')(feats)
    with pytest.raises(ValueError, match='2 reg_branches, got 3'):
        build_decoder('refine')(feats, None, classify, boxes)
    with pytest.raises(ValueError, match='3 cls_branches, got None'):
        build_decoder('two-stage')(feats, None, None, boxes)
    many = build_decoder('two-stage', num_queries=PIXELS + 1)
    with pytest.raises(ValueError, match=f'{PIXELS + 1} queries .* have {PIXELS}'):
        many(feats, None, classify, boxes)
