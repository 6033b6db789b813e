"""The encoder of Deformable DETR: a rewrite, padding, settings."""

import copy

import deformable_detr_rewrite as rewrite
import pytest
import torch
from deformable_detr_models import (
    CHANNELS,
    HEADS,
    SHAPES,
    VALID,
    build_encoder,
    gradients,
    maps,
    official_parameters,
    padding_masks,
)
from golden import hashed
from torch.testing import assert_close

REWRITE = dict(rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('padded', [False, True], ids=['no-masks', 'padding'])
def test_encoder_is_its_definition(padded):
    encoder = build_encoder()
    params = official_parameters(encoder=encoder)
    masks = padding_masks() if padded else None
    feats, others = ([x.requires_grad_() for x in maps()] for _ in range(2))
    outs = encoder(feats, masks)
    assert [out.shape for out in outs] == [feat.shape for feat in feats]
    tokens = torch.cat([out.flatten(2).transpose(1, 2) for out in outs], 1)
    masks = masks or padding_masks(valid=SHAPES)
    expected = torch.stack(
        [
            rewrite.encode(params, [x[b] for x in others], [m[b] for m in masks], HEADS)
            for b in range(2)
        ]
    )
    assert_close(tokens, expected, **REWRITE)
    for result in (tokens, expected):
        (result * hashed('probe', result.shape)).sum().backward()
    assert_close([x.grad for x in feats], [x.grad for x in others], **REWRITE)
    expected = {name: p.grad for name, p in params.items()}
    actual = {
        name if name == 'level_embed' else f'encoder.{name}': gradient
        for name, gradient in gradients(encoder).items()
    }
    assert_close(actual, expected, **REWRITE)


def test_padded_image_is_encoded_as_it_would_be_alone():
    """The values in the padding do not matter, either."""
    encoder, feats = build_encoder(), maps()
    outs = encoder(feats, padding_masks())
    crops = [
        feat[1:, :, :rows, :columns]
        for feat, (rows, columns) in zip(feats, VALID, strict=True)
    ]
    alone = encoder(crops)
    full = encoder([feat[:1] for feat in feats])
    for out, first, second in zip(outs, full, alone, strict=True):
        assert_close(out[:1], first, **REWRITE)
        rows, columns = second.shape[2:]
        # Normalized positions divide by a side plus 1e-6.
        assert_close(out[1:, :, :rows, :columns], second, **REWRITE)


def test_masks_without_padding_change_nothing():
    encoder, feats = build_encoder(), maps()
    expected = encoder(feats)
    assert_close(encoder(feats, padding_masks(valid=SHAPES)), expected, **REWRITE)


def test_checkpointing_changes_nothing():
    """Also not where dropout draws numbers and the maps need no gradient."""
    plain = build_encoder(dropout=0.3).train()
    results = []
    for encoder in (plain, build_encoder(dropout=0.3, with_cp=True).train()):
        torch.manual_seed(0)
        outs = encoder(maps(), padding_masks())
        sum(out.square().sum() for out in outs).backward()
        results.append((outs, gradients(encoder)))
    assert_close(*results, rtol=0, atol=0)
    assert not torch.equal(plain(maps())[0], plain(maps())[0])  # dropout is on


def test_coordinates_stay_in_float32():
    """In a model of bfloat16, and under autocast, where the maps agree with float32's.

    The only map is too wide for bfloat16 to tell its pixels apart.
    """
    encoder = build_encoder(num_levels=1).float()
    half = copy.deepcopy(encoder).bfloat16()
    for model in (half, encoder):
        reference = model.reference_points([(1, 600)], None)
        assert reference.dtype == torch.float32
        assert reference[0, :, 0, 0].unique().numel() == 600
        assert model.positions([(1, 600)], None).dtype == model.level_embed.dtype
    feats = [hashed('src', (1, CHANNELS, 1, 600)).float()]
    expected = encoder(feats)[0]
    with torch.autocast('cpu', torch.bfloat16):
        out = encoder(feats)[0]
    assert out.dtype == torch.float32
    assert_close(out, expected, rtol=0, atol=0.06)
    assert half([feats[0].bfloat16()])[0].dtype == torch.bfloat16
