"""Encoder and decoder of Deformable DETR: golden values, padding, dtypes, graphs.

`test_deformable_detr_checkpoints.py` compares them, and their gradients, with
transformers'.
"""

import copy

import deformable_detr_models as small
import pytest
import torch
from backbones import counted
from golden import SINGLE, assert_golden, golden, hashed
from layer_checks import randomize
from refusals import refuses
from torch import nn
from torch.testing import assert_close

from mmattn.models import DeformableDETRDecoder, DeformableDETREncoder
from mmattn.models.layers.deformable_detr.blocks import (
    DeformableDETRDecoderLayer,
    DeformableDETREncoderLayer,
)
from mmattn.models.layers.deformable_detr.geometry import (
    box_proposals,
    flatten_maps,
    flatten_masks,
    inverse_sigmoid,
    valid_ratios,
)

every_kind = pytest.mark.parametrize('kind', small.KINDS)


def test_official_values():
    """Two layers of encoder and decoder, with padding beside the second image.

    The official code has constants in float32.
    """
    shapes = [(16, 20), (8, 10), (4, 5), (2, 3)]
    valid = [(round(0.75 * H), round(0.75 * W)) for H, W in shapes]
    feats, masks = small.maps(shapes, C=256), small.padding_masks(shapes, valid)
    settings = dict(num_layers=2, feedforward_channels=512)
    encoder = small.fill(DeformableDETREncoder(**settings).double(), 'encoder').eval()
    decoder = DeformableDETRDecoder(num_queries=20, **settings).double()
    decoder = small.fill(decoder, 'decoder').eval()
    positions = [
        flatten_maps([hashed(f'pos{level}', feats[level].shape)]) + embed
        for level, embed in enumerate(encoder.level_embed)
    ]
    with torch.no_grad():
        decoder.query_embed.weight.copy_(hashed('query_embed', (20, 512)))
        padding_mask = flatten_masks(masks)
        memory = encoder.encode(
            flatten_maps(feats),
            torch.cat(positions, 1),
            encoder.reference_points(shapes, masks),
            shapes,
            padding_mask,
        )
        query, positions, reference = decoder.learned_queries(2)
        ratios = valid_ratios(masks, torch.float64)
        hidden_states, references = decoder.decode(
            query, positions, reference, memory, shapes, ratios, padding_mask
        )
    record = golden('ddetr')['DeformableTransformer enc2 dec2 ffn512 two_stage=False']
    assert_golden(hidden_states, record['hs'], SINGLE)
    assert_golden(references[0], record['init_ref'], SINGLE)
    assert_golden(torch.stack(references[1:]), record['inter_ref'], SINGLE)


def test_padding_does_not_move_proposals():
    """Not by a rounding, which matters where a center is at the margin, 0.5 / 50."""
    settings = dict(dtype=torch.float32, device=torch.device('cpu'))
    for side in range(1, 65):
        mask = torch.zeros(1, 1, 64, dtype=torch.bool)
        mask[..., side:] = True
        ratios = valid_ratios([mask], torch.float32)
        padded = box_proposals([(1, 64)], ratios, mask.flatten(1), **settings)
        alone = box_proposals([(1, side)], None, None, **settings)
        assert_close([x[:, :side] for x in padded], list(alone), rtol=0, atol=0)
        assert padded[1].sum() == alone[1].sum()
    assert box_proposals([(1, 50)], None, None, **settings)[1].sum() == 48


def test_inverse_sigmoid_is_bounded():
    x = torch.tensor([0.0, 1e-7, 0.25, 1.0]).double()
    bound = torch.tensor(1 / 1e-5).double().log()
    expected = torch.stack([-bound, -bound, torch.tensor(1 / 3).double().log(), bound])
    assert_close(inverse_sigmoid(x), expected, rtol=1e-5, atol=1e-7)


@every_kind
def test_checkpointing_runs_layers_again_and_changes_nothing(kind):
    """Also where dropout draws numbers and the maps need no gradient."""
    results = []
    for with_cp in (False, True):
        encoder = small.build_encoder(dropout=0.3, with_cp=with_cp).train()
        decoder = small.build_decoder(kind, dropout=0.3, with_cp=with_cp).train()
        branches = small.build_branches(kind)
        runs = counted([*encoder.layers, *decoder.layers])
        torch.manual_seed(0)
        feats, masks = small.maps(), small.padding_masks()
        out = decoder(encoder(feats, masks), masks, *branches)
        out.hidden_states.square().sum().backward()
        assert set(runs.values()) == {1 + with_cp}
        parts = encoder, decoder, *branches
        results.append((out, [small.gradients(part) for part in parts]))
    assert_close(*results, rtol=0, atol=0)


def test_coordinates_of_the_encoder_stay_in_float32():
    """In a model of bfloat16, and under autocast, where the maps agree with float32's.

    The only map is too wide for bfloat16 to tell its pixels apart.
    """
    encoder = small.build_encoder(num_levels=1).float()
    half = copy.deepcopy(encoder).bfloat16()
    for model in (half, encoder):
        reference = model.reference_points([(1, 600)], None)
        assert reference.dtype == torch.float32
        assert reference[0, :, 0, 0].unique().numel() == 600
        assert model.positions([(1, 600)], None).dtype == model.level_embed.dtype
    feats = [hashed('src', (1, small.CHANNELS, 1, 600)).float()]
    expected = encoder(feats)[0]
    with torch.autocast('cpu', torch.bfloat16):
        out = encoder(feats)[0]
    assert out.dtype == torch.float32
    assert_close(out, expected, rtol=0, atol=0.06)
    assert half([feats[0].bfloat16()])[0].dtype == torch.bfloat16


@every_kind
def test_coordinates_of_the_decoder_stay_in_float32(kind):
    """Branches that refine get the gradient of their use in the head all the same."""
    decoder = small.build_decoder(kind).float()
    branches = [part.float() for part in small.build_branches(kind)]
    feats = [feat.float() for feat in small.maps()]
    expected = decoder(feats, None, *branches)
    with torch.autocast('cpu', torch.bfloat16):
        out = decoder(feats, None, *branches)
        pairs = zip(branches[1], out.hidden_states, strict=False)
        sum(box(state).float().sum() for box, state in pairs).backward()
    assert {x.dtype for x in out.references} == {torch.float32}
    if kind != 'two-stage':
        assert_close(out.references[0], expected.references[0], rtol=0, atol=1e-6)
    assert_close(out.references[-1], expected.references[-1], rtol=0, atol=0.05)
    assert branches[1][0].weight.grad.abs().sum() > 0
    half = [part.bfloat16() for part in (decoder, *branches)]
    out = half[0]([feat.bfloat16() for feat in feats], small.padding_masks(), *half[1:])
    assert out.hidden_states.dtype == torch.bfloat16
    assert {x.dtype for x in out.references} == {torch.float32}


LAYERS = [
    (DeformableDETREncoderLayer, [1, 0, 1], lambda m, x: m.norm2(m.norm1(x))),
    # Whose self-attention drops weights, too.
    (
        DeformableDETRDecoderLayer,
        [1, 1, 0, 1],
        lambda m, x: m.norm3(m.norm1(m.norm2(x))),
    ),
]


@pytest.mark.parametrize('cls, drops, rest', LAYERS)
def test_dropout_is_after_attention_and_inside_and_after_the_mlp(cls, drops, rest):
    """As in https://github.com/fundamentalvision/Deformable-DETR."""
    C, feedforward = 16, 24
    layer = cls(C, 2, 1, 2, feedforward, dropout=0.25).double().train()
    randomize(layer, 0.5)
    x, positions = hashed('x', (2, 12, C)), hashed('positions', (2, 12, C))
    reference = hashed('reference', (2, 12, 1, 2)).abs()
    is_decoder = cls is DeformableDETRDecoderLayer
    memory = [x.flip(1)] if is_decoder else []
    arguments = x, positions, *memory, reference, [(3, 4)], None
    dropouts = [m for m in layer.modules() if isinstance(m, nn.Dropout)]
    widths = []
    for module in dropouts:
        assert module.p == 0.25
        module.register_forward_pre_hook(lambda m, args: widths.append(args[0].shape))
    assert not is_decoder or layer.self_attn.dropout == 0.25
    layer(*arguments)
    assert [shape[-1] == C for shape in widths] == [bool(full) for full in drops]
    for module in dropouts:
        module.p = 1.0
    assert_close(layer(*arguments), rest(layer, x), rtol=0, atol=1e-12)


def test_weights_start_as_the_official_ones():
    torch.manual_seed(0)
    encoder = DeformableDETREncoder(64, 1, 8, 4, 4, 128)
    decoder = DeformableDETRDecoder(
        **small.SMALL | dict(embed_dims=64, num_heads=8, num_queries=50)
    )
    assert abs(encoder.level_embed.std().item() - 1) < 0.2
    assert abs(decoder.query_embed.weight.std().item() - 1) < 0.05
    assert not decoder.reference_points.bias.any()
    layer, attention = encoder.layers[0], decoder.layers[0].self_attn
    for weight, sides in (
        (layer.linear1.weight, 64 + 128),
        (layer.linear2.weight, 64 + 128),
        (decoder.reference_points.weight, 64 + 2),
        (attention.in_proj_weight, 64 + 3 * 64),
        (attention.out_proj.weight, 64 + 64),
    ):
        bound = (6 / sides) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
    for deformable in (layer.self_attn, decoder.layers[0].cross_attn):
        assert not deformable.sampling_offsets.weight.any()
        assert deformable.sampling_offsets.bias.abs().amax() == deformable.num_points


test_wrong_settings_of_the_encoder = refuses(
    small.build_encoder,
    (dict(embed_dims=6), 'embed_dims=6'),
    (dict(num_layers=0), 'num_layers=0'),
)


test_wrong_settings_of_the_decoder = refuses(
    small.build_decoder,
    (dict(embed_dims=6), 'embed_dims=6'),
    (dict(num_layers=0), 'num_layers=0'),
    (dict(num_queries=0), 'num_queries=0'),
    (dict(as_two_stage=True), 'with_box_refine=False'),
)


def decode(masks=None, count=3, **settings):
    branches = [part[:count] for part in small.build_branches('two-stage')]
    return small.build_decoder('two-stage', **settings)(small.maps(), masks, *branches)


test_wrong_inputs = refuses(
    decode,
    (dict(masks=[x.float() for x in small.padding_masks()]), 'masks must be bool'),
    (dict(count=2), 'requires 3 cls_branches, got 2'),
    (dict(num_queries=52), '52 queries require as many pixels, the maps have 51'),
)


LEVELS = 2
# Sides that differ from each other, as equal ones are taken for one.
SIZES = ((9, 10), (5, 6)), ((12, 13), (6, 7)), ((11, 15), (3, 4))
VALID = (8, 7), (3, 4)  # of the second image; no map is smaller


class Transformer(nn.Module):
    """With one layer and one branch for each stage."""

    def __init__(self, kind, **kwargs):
        super().__init__()
        kwargs = dict(num_layers=1, num_levels=LEVELS) | kwargs
        self.encoder = small.build_encoder(**kwargs)
        self.decoder = small.build_decoder(kind, **kwargs)
        self.branches = nn.ModuleList(part[1:] for part in small.build_branches(kind))

    def forward(self, feats, masks=None):
        return self.decoder(self.encoder(feats, masks), masks, *self.branches)


def test_exported_model_takes_other_sizes():
    model, sizes = Transformer('two-stage'), torch.export.Dim.DYNAMIC
    program = torch.export.export(
        model,
        (small.maps(SIZES[0]), None),
        dynamic_shapes=([{2: sizes, 3: sizes}] * LEVELS, None),
    ).module()
    for shapes in SIZES:
        assert_close(program(small.maps(shapes), None), model(small.maps(shapes)))


@pytest.mark.slow
@pytest.mark.parametrize('kind, with_cp', [('two-stage', False), ('refine', True)])
def test_training_through_inductor(kind, with_cp):
    """The default compiler and its treatment of changing sizes; two graphs at most."""
    torch.compiler.reset()
    eager, model = (Transformer(kind, with_cp=with_cp).float() for _ in range(2))
    with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=2):
        compiled = torch.compile(model, fullgraph=True)
        for shapes in SIZES:
            feats, masks = small.maps(shapes), small.padding_masks(shapes, VALID)
            feats = [feat.float() for feat in feats]
            results = []
            for run in (eager, compiled):
                run.zero_grad()
                out = run(feats, masks)
                out.hidden_states.square().mean().backward()
                gradients = [  # None is what a compiled graph has a zero for
                    torch.zeros_like(p) if p.grad is None else p.grad
                    for p in run.parameters()
                ]
                results.append((out, gradients))
            assert_close(*results, rtol=1e-4, atol=1e-5)
