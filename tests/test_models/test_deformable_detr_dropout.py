"""Deformable DETR's dropout: after attention, inside and after feed-forward networks.

As in https://github.com/fundamentalvision/Deformable-DETR, where the decoder's
self-attention also drops weights.
"""

import torch
from torch import nn
from torch.testing import assert_close

from mmattn.models.layers.deformable_detr.blocks import (
    DeformableDETRDecoderLayer,
    DeformableDETREncoderLayer,
)

C, FEEDFORWARD, RATE = 16, 24, 0.25
SHAPES = [(3, 4)]
SETTINGS = dict(
    embed_dims=C,
    num_heads=2,
    num_levels=1,
    num_points=2,
    feedforward_channels=FEEDFORWARD,
)


def build(cls, dropout):
    torch.manual_seed(0)
    layer = cls(**SETTINGS, dropout=dropout).double().train()
    for param in layer.parameters():
        nn.init.normal_(param, std=0.5)
    return layer


def run(layer):
    """Return what goes into a layer and what comes out."""
    generator = torch.Generator().manual_seed(1)
    x, positions = (
        torch.randn(2, 12, C, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    reference = torch.rand(2, 12, 1, 2, generator=generator, dtype=torch.float64)
    memory = [x.flip(1)] if isinstance(layer, DeformableDETRDecoderLayer) else []
    return x, layer(x, positions, *memory, reference, SHAPES, None)


def widths_of_drops(layer):
    """Return the channels of what each call of a dropout gets, in order."""
    widths = []
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            assert module.p == RATE
            module.register_forward_pre_hook(
                lambda module, args: widths.append(args[0].shape[-1])
            )
    run(layer)
    return widths


def test_encoder_drops_what_it_adds_and_the_hidden_layer():
    layer = build(DeformableDETREncoderLayer, RATE)
    assert widths_of_drops(layer) == [C, FEEDFORWARD, C]
    layer = build(DeformableDETREncoderLayer, 1.0)
    x, out = run(layer)
    assert_close(out, layer.norm2(layer.norm1(x)), rtol=0, atol=1e-12)


def test_decoder_drops_what_it_adds_the_hidden_layer_and_weights():
    layer = build(DeformableDETRDecoderLayer, RATE)
    assert widths_of_drops(layer) == [C, C, FEEDFORWARD, C]
    assert layer.self_attn.dropout == RATE
    layer = build(DeformableDETRDecoderLayer, 1.0)
    x, out = run(layer)
    expected = layer.norm3(layer.norm1(layer.norm2(x)))
    assert_close(out, expected, rtol=0, atol=1e-12)
