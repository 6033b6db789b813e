"""The decoder of Deformable DETR: golden values, a rewrite, padding, settings."""

import deformable_detr_rewrite as rewrite
import pytest
import torch
from deformable_detr_models import (
    CHANNELS,
    HEADS,
    KINDS,
    QUERIES,
    SHAPES,
    VALID,
    build_branches,
    build_decoder,
    build_encoder,
    fill,
    gradients,
    maps,
    official_parameters,
    padding_masks,
)
from golden import SINGLE, assert_golden, golden, hashed
from torch.testing import assert_close

from mmattn.models import DeformableDETRDecoder, DeformableDETREncoder
from mmattn.models.layers.deformable_detr.geometry import (
    box_proposals,
    flatten_maps,
    flatten_masks,
    inverse_sigmoid,
    valid_ratios,
)

REWRITE = dict(rtol=1e-12, atol=1e-12)
PIXELS = sum(H * W for H, W in SHAPES)

every_kind = pytest.mark.parametrize('kind', KINDS)


def run(kind, masks=None, feats=None, **kwargs):
    decoder, branches = build_decoder(kind, **kwargs), build_branches(kind)
    return decoder(maps() if feats is None else feats, masks, *branches)


def test_official_values():
    """Two layers of encoder and decoder, with padding beside the second image.

    The official code has constants in float32.
    """
    shapes = [(16, 20), (8, 10), (4, 5), (2, 3)]
    valid = [(round(0.75 * H), round(0.75 * W)) for H, W in shapes]
    feats, masks = maps(shapes, C=256), padding_masks(shapes, valid)
    settings = dict(num_layers=2, feedforward_channels=512)
    encoder = fill(DeformableDETREncoder(**settings).double(), 'encoder').eval()
    decoder = DeformableDETRDecoder(num_queries=20, **settings).double()
    decoder = fill(decoder, 'decoder').eval()
    positions = [
        flatten_maps([hashed(f'pos{level}', feat.shape)]) + embed
        for level, (feat, embed) in enumerate(
            zip(feats, encoder.level_embed, strict=True)
        )
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


@pytest.mark.parametrize('padded', [False, True], ids=['no-masks', 'padding'])
@every_kind
def test_decoder_is_its_definition(kind, padded):
    decoder, branches = build_decoder(kind), build_branches(kind)
    other_branches = build_branches(kind)
    params = official_parameters(decoder=decoder)
    masks = padding_masks() if padded else None
    feats, others = ([x.requires_grad_() for x in maps()] for _ in range(2))
    out = decoder(feats, masks, *branches)
    masks = masks or padding_masks(valid=SHAPES)
    memory = torch.cat([x.flatten(2).transpose(1, 2) for x in others], 1)
    classify, boxes = other_branches
    expected = [
        rewrite.decode(
            params,
            memory[b],
            [mask[b] for mask in masks],
            HEADS,
            QUERIES,
            classify[-1] if kind == 'two-stage' else None,
            None if kind == 'one-stage' else boxes,
        )
        for b in range(2)
    ]
    states, references, scores, boxes = zip(*expected, strict=True)
    results = [
        (out.hidden_states, torch.stack(states, 1)),
        *zip(
            out.references,
            (torch.stack(x) for x in zip(*references, strict=True)),
            strict=True,
        ),
    ]
    if kind == 'two-stage':
        scores, boxes = torch.stack(scores), torch.stack(boxes)
        results += [(out.enc_class, scores), (out.enc_coord, boxes)]
        best = scores[..., 0].sort(descending=True).values[:, : QUERIES + 1]
        assert (best.diff() < -1e-6).all()  # nobody's order of ties is tested
    else:
        assert out.enc_class is out.enc_coord is None
    for actual, expected in results:
        assert_close(actual, expected, **REWRITE)
    for side in (0, 1):
        sum(
            (pair[side] * hashed(f'probe{i}', pair[side].shape)).sum()
            for i, pair in enumerate(results)
        ).backward()
    assert_close([x.grad for x in feats], [x.grad for x in others], **REWRITE)
    actual = {
        f'decoder.{name}' if name.startswith('layers.') else name: gradient
        for name, gradient in gradients(decoder).items()
    }
    expected = {name: p.grad for name, p in params.items()}
    assert_close(actual, expected, **REWRITE)
    for mine, other in zip(branches, other_branches, strict=True):
        assert_close(gradients(mine), gradients(other), **REWRITE)


@pytest.mark.parametrize('kind', ['one-stage', 'refine'])
def test_padded_image_is_decoded_as_it_would_be_alone(kind):
    """References are relative to the image, not to the padded one."""
    feats = maps()
    out = run(kind, padding_masks())
    crops = [
        feat[1:, :, :rows, :columns]
        for feat, (rows, columns) in zip(feats, VALID, strict=True)
    ]
    alone = run(kind, feats=crops)
    assert_close(out.hidden_states[:, 1:], alone.hidden_states, **REWRITE)
    assert_close([x[1:] for x in out.references], alone.references, **REWRITE)


@every_kind
def test_masks_without_padding_change_nothing(kind):
    assert_close(run(kind, padding_masks(valid=SHAPES)), run(kind), **REWRITE)


@every_kind
def test_references_are_what_heads_add_to(kind):
    """Each layer's boxes are the next one's references, without their gradient."""
    decoder, (classify, boxes) = build_decoder(kind), build_branches(kind)
    states, references, _, _ = decoder(maps(), None, classify, boxes)
    assert len(references) == len(states) + 1
    start = 4 if kind == 'two-stage' else 2
    assert references[0].shape == (2, QUERIES, start)
    assert references[0].requires_grad == (kind != 'two-stage')
    for state, box, before, after in zip(
        states, boxes, references, references[1:], strict=False
    ):
        if kind == 'one-stage':
            assert after is references[0]
            continue
        delta = box(state)
        delta[..., : before.shape[-1]] += inverse_sigmoid(before)
        assert_close(after, delta.sigmoid(), **REWRITE)
        assert not after.requires_grad


def test_first_stage_takes_the_highest_scores_of_the_first_class():
    """Pixels in the padding, and those with boxes too large or near a border, have no
    proposal: their boxes are all ones.
    """
    masks = padding_masks()
    out = run('two-stage', masks)
    scores = out.enc_class[..., 0]
    for image in range(2):
        best = scores[image].argsort(descending=True)[:QUERIES]
        assert_close(out.references[0][image], out.enc_coord[image, best], **REWRITE)
    padding = flatten_masks(masks)
    assert (out.enc_coord[padding] == 1).all()
    assert (out.enc_coord[~padding] != 1).all()
    fine = [(1, 200), (1, 2), (2, 2)]  # the first pixel's center is at 0.0025
    feats = maps(fine)
    ones = (run('two-stage', feats=feats).enc_coord == 1).all(-1)
    assert ones[:, :2].all() and ones[:, 198:200].all()
    assert not ones[:, 2:198].any() and not ones[:, 200:].any()


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
def test_checkpointing_changes_nothing(kind):
    results = []
    for with_cp in (False, True):
        decoder = build_decoder(kind, dropout=0.3, with_cp=with_cp).train()
        branches = build_branches(kind)
        torch.manual_seed(0)
        out = decoder(maps(), padding_masks(), *branches)
        out.hidden_states.square().sum().backward()
        results.append((out, [gradients(part) for part in (decoder, *branches)]))
    assert_close(*results, rtol=0, atol=0)


@every_kind
def test_coordinates_stay_in_float32_under_autocast(kind):
    """Branches that refine get the gradient of their use in the head all the same."""
    decoder = build_decoder(kind).float()
    branches = [part.float() for part in build_branches(kind)]
    feats = [feat.float() for feat in maps()]
    expected = decoder(feats, None, *branches)
    with torch.autocast('cpu', torch.bfloat16):
        out = decoder(feats, None, *branches)
        boxes = [
            box(state)
            for box, state in zip(branches[1], out.hidden_states, strict=False)
        ]
        sum(box.float().sum() for box in boxes).backward()
    assert {x.dtype for x in out.references} == {torch.float32}
    if kind != 'two-stage':
        assert_close(out.references[0], expected.references[0], rtol=0, atol=1e-6)
    assert_close(out.references[-1], expected.references[-1], rtol=0, atol=0.05)
    assert branches[1][0].weight.grad.abs().sum() > 0


def test_half_precision():
    """A model of bfloat16 keeps its references in float32."""
    decoder = build_decoder('two-stage').bfloat16()
    branches = [part.bfloat16() for part in build_branches('two-stage')]
    feats = [feat.bfloat16() for feat in maps()]
    out = decoder(feats, padding_masks(), *branches)
    assert out.hidden_states.dtype == torch.bfloat16
    assert {x.dtype for x in (*out.references, out.enc_coord)} == {torch.float32}


def test_it_decodes_what_the_encoder_returns():
    """Views of one tensor, whose maps are not contiguous."""
    encoded = build_encoder()(maps(), padding_masks())
    copies = [feat.contiguous() for feat in encoded]
    results = (run('refine', padding_masks(), feats) for feats in (encoded, copies))
    assert_close(*results)
    assert encoded[0].shape == (2, CHANNELS, *SHAPES[0])
