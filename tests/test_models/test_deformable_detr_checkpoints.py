"""Weights of Deformable DETR in four layouts; transformers' model beside ours."""

import copy
import re

import pytest
import small_deformable_detr as small
import torch
import torchvision
import transformers
from torch import nn
from torch.testing import assert_close

from mmattn.registry import MODELS
from mmattn.weights.layouts.deformable_detr import (
    convert_state_dict,
    layout_of,
    to_official_state_dict,
)
from mmattn.weights.load import load_weights

each_form = pytest.mark.parametrize('form', small.FORMS)
# Losses of transformers, the name and weight of each in mmdet. It weighs the loss of
# classes by 1 in its own sum, the paper and mmdet by 2.
TERMS = {
    'loss_ce': ('loss_cls', 2),
    'loss_bbox': ('loss_bbox', 5),
    'loss_giou': ('loss_iou', 2),
}


@pytest.fixture(scope='module')
def peers():
    """transformers' model in each form, with random weights, in float64."""
    return {form: make_peer(form) for form in small.FORMS}


def make_peer(form):
    parts = 'encoder', 'decoder'
    cfg = transformers.DeformableDetrConfig(
        backbone_config=dict(
            model_type='timm_backbone',
            backbone='resnet18',
            out_indices=[2, 3, 4],
            features_only=True,
            use_pretrained_backbone=False,
        ),
        d_model=small.WIDTH,
        **{f'{part}_layers': small.LAYERS for part in parts},
        **{f'{part}_attention_heads': 4 for part in parts},
        **{f'{part}_ffn_dim': 48 for part in parts},
        encoder_n_points=3,
        decoder_n_points=2,
        num_queries=small.QUERIES,
        two_stage_num_proposals=small.QUERIES,
        num_labels=small.CLASSES,
        class_cost=2,  # 1 by default, which is not the paper's
        auxiliary_loss=True,
        with_box_refine='with_box_refine' in small.FORMS[form],
        two_stage='as_two_stage' in small.FORMS[form],
    )
    model = transformers.DeformableDetrForObjectDetection(cfg)
    if form == 'refine':  # version 5 ties these, which the authors' weights do not
        model.class_embed = nn.ModuleList(copy.deepcopy(m) for m in model.class_embed)
    return small.with_random_weights(model).double().eval()


def pixel_mask_and_labels():
    mask, labels = torch.zeros(2, *small.IMAGES, dtype=torch.long), []
    for index, (H, W) in enumerate(small.SHAPES):
        mask[index, :H, :W] = 1
        first, last = small.BOXES[index].double().chunk(2, dim=1)
        boxes = torch.cat([(first + last) / 2, last - first], dim=1)
        boxes = boxes / torch.tensor([W, H, W, H])
        labels.append(dict(class_labels=small.LABELS[index], boxes=boxes))
    return mask, labels


@each_form
def test_outputs_losses_and_gradients_are_those_of_transformers(form, peers):
    peer = peers[form]
    ours = MODELS.build(small.config(form, **small.RESNET18)).double().eval()
    ours.load_state_dict(peer.state_dict())
    x, given = small.images().requires_grad_(), small.images().requires_grad_()
    mask, labels = pixel_mask_and_labels()

    out = peer(given, pixel_mask=mask, labels=labels)
    scores, boxes = ours._forward(x, small.samples())
    # The two-stage form of transformers has proposals in float32.
    exact = dict(rtol=0, atol=1e-6 if form == 'two-stage' else 1e-12)
    assert_close(scores[-1], out.logits, **exact)
    assert_close(boxes[-1], out.pred_boxes, **exact)
    for index, layer in enumerate(out.auxiliary_outputs):
        assert_close(scores[index], layer['logits'], **exact)
        assert_close(boxes[index], layer['pred_boxes'], **exact)
    assert scores.std(2).min() > 1e-2  # queries are told apart

    losses = ours.loss(x, small.samples())
    # mmdet adds float32's epsilon to the number of boxes.
    loss_tolerance = 1e-6 if form == 'two-stage' else 1e-7
    expected, same = {}, {}
    for layer in range(small.LAYERS):
        for theirs, (name, weight) in TERMS.items():
            last = layer == small.LAYERS - 1
            key = theirs if last else f'{theirs}_{layer}'
            name = name if last else f'd{layer}.{name}'
            expected[name] = weight * out.loss_dict[key]
            same[name] = losses[name].squeeze()  # one-element at times
            assert_close(same[name], expected[name], rtol=loss_tolerance, atol=0)
    total, expected_total = sum(same.values()), sum(expected.values())
    assert_close(total, expected_total, rtol=loss_tolerance, atol=0)
    first_stage = {name for name in losses if name.startswith('enc_')}
    assert losses.keys() == same.keys() | first_stage  # transformers has none of those
    assert bool(first_stage) == (form == 'two-stage')
    (gradient,) = torch.autograd.grad(total, x)
    (expected_gradient,) = torch.autograd.grad(expected_total, given)
    limit = loss_tolerance * expected_gradient.abs().max().item()
    assert_close(gradient, expected_gradient, rtol=0, atol=limit)


@each_form
def test_names_of_transformers_4_and_its_files_without_tied_weights(form, peers):
    weights = peers[form].state_dict()
    older = {
        name.replace('backbone.model.', 'backbone.conv_encoder.model.')
        .replace('self_attn.o_proj', 'self_attn.out_proj')
        .replace('.mlp.fc', '.fc'): value
        for name, value in weights.items()
    }
    tied = {
        'one-stage': r'(class|bbox)_embed\.[1-9]',
        'refine': r'bbox_embed\.',
        'two-stage': r'(class|bbox)_embed\.',
    }[form]
    older = {n: value for n, value in older.items() if not re.match(tied, n)}
    assert len(older) < len(weights)
    expected, converted = convert_state_dict(weights), convert_state_dict(older)
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], expected[name]) for name in expected)


def official_names(form):
    """List the official code's names with our small sizes, by its constructors."""
    attention = 'sampling_offsets', 'attention_weights', 'value_proj', 'output_proj'
    both = 'weight', 'bias'
    shared = ['linear1', 'linear2', 'norm1', 'norm2']
    parts = {
        'encoder': [*shared, *(f'self_attn.{name}' for name in attention)],
        'decoder': [*shared, *(f'cross_attn.{name}' for name in attention), 'norm3'],
    }
    parts['decoder'] += ['self_attn.out_proj']
    names, linear = ['transformer.level_embed'], []
    for coder, inside in parts.items():
        for i in range(small.LAYERS):
            linear += [f'transformer.{coder}.layers.{i}.{part}' for part in inside]
    for i in range(small.LAYERS):
        place = f'transformer.decoder.layers.{i}.self_attn'
        names += [f'{place}.in_proj_{leaf}' for leaf in both]
    heads = small.LAYERS + (form == 'two-stage')
    linear += [f'input_proj.{level}.{i}' for level in range(4) for i in range(2)]
    classes = [f'class_embed.{i}' for i in range(heads)]
    boxes = [f'bbox_embed.{i}.layers.{j}' for i in range(heads) for j in range(3)]
    linear += classes + boxes
    if form != 'one-stage':
        linear += [f'transformer.decoder.{name}' for name in boxes]
    if form == 'two-stage':
        linear += [f'transformer.decoder.{name}' for name in classes]
        starts = 'enc_output', 'enc_output_norm', 'pos_trans', 'pos_trans_norm'
        linear += [f'transformer.{name}' for name in starts]
    else:
        linear += ['transformer.reference_points']
        names += ['query_embed.weight']
    names += [f'{name}.{leaf}' for name in linear for leaf in both]
    body = torchvision.models.resnet18().state_dict()
    names += [f'backbone.0.body.{name}' for name in body if 'num_bat' not in name]
    return {name for name in names if '.fc.' not in name}


@each_form
def test_official_names_and_back(form, peers):
    """The names differ from transformers' by known renamings alone."""
    theirs = peers[form].state_dict()
    official = to_official_state_dict(theirs)
    assert set(official) == official_names(form)
    assert layout_of(official) == 'official'
    layer = 'transformer.decoder.layers.1'
    peer = 'model.decoder.layers.1'
    for name, other in {
        f'{layer}.norm1.weight': f'{peer}.encoder_attn_layer_norm.weight',
        f'{layer}.norm2.weight': f'{peer}.self_attn_layer_norm.weight',
        f'{layer}.norm3.weight': f'{peer}.final_layer_norm.weight',
        'input_proj.3.0.bias': 'model.input_proj.3.0.bias',
        'bbox_embed.1.layers.2.bias': 'bbox_embed.1.layers.2.bias',
        'backbone.0.body.bn1.running_var': 'model.backbone.model.bn1.running_var',
    }.items():
        assert torch.equal(official[name], theirs[other]), name

    model = small.detector(form, **small.RESNET18)
    converted = convert_state_dict(official)
    model.load_state_dict(converted)
    own = {n: x for n, x in model.state_dict().items() if 'num_batches' not in n}
    assert converted.keys() == own.keys()
    again = to_official_state_dict(converted)
    assert again.keys() == official.keys()
    assert all(torch.equal(again[name], official[name]) for name in official)


@pytest.fixture(scope='module')
def official():
    return to_official_state_dict(small.detector('refine').state_dict())


def test_init_cfg_loads_the_authors_file(official, tmp_path):
    path = str(tmp_path / 'r50_deformable_detr.pth')
    torch.save(dict(model=official, epoch=49), path)
    init_cfg = dict(type='Pretrained', checkpoint=path)
    model = MODELS.build(small.config('refine', init_cfg=init_cfg))
    model.init_weights()
    loaded = to_official_state_dict(model.state_dict())
    assert all(torch.equal(loaded[name], x) for name, x in official.items())


def test_a_head_for_other_classes_is_refused_and_its_weights_are_kept(official):
    wide = {
        name: x.repeat(*[20] + [1] * (x.dim() - 1))[:91] if 'class_embed' in name else x
        for name, x in official.items()
    }
    assert convert_state_dict(wide)['bbox_head.cls_branches.1.bias'].shape == (91,)
    model = MODELS.build(small.config('refine'))
    before = model.encoder.level_embed.clone()
    with pytest.raises(ValueError, match=r'of 91 classes, bbox_head has 5: set num_cl'):
        model.load_state_dict(wide)
    assert torch.equal(model.encoder.level_embed, before)
    fine_tuned = load_weights(model, convert_state_dict(wide))  # of our own names
    assert set(fine_tuned.mismatched) == {
        f'bbox_head.cls_branches.{i}.{leaf}'
        for i in range(small.LAYERS)
        for leaf in ('weight', 'bias')
    }


@pytest.mark.parametrize(
    'form, other', [('refine', 'one-stage'), ('one-stage', 'refine')]
)
def test_another_form_is_refused(form, other):
    """Names and shapes are the same; one would overwrite the others in turn."""
    weights = to_official_state_dict(small.detector(form).state_dict())
    model = MODELS.build(small.config(other))
    expected = (
        r'of a Deformable DETR with with_box_refine=(\w+), the decoder has (?!\1)'
    )
    with pytest.raises(ValueError, match=expected):
        model.load_state_dict(weights)


def test_what_is_unknown_is_refused(official):
    unknown = 'transformer.encoder.layers.0.norm9.weight'
    with pytest.raises(ValueError, match=f'layout official: .*{unknown}'):
        convert_state_dict(official | {unknown: torch.ones(3)})
    ours = convert_state_dict(official)
    with pytest.raises(ValueError, match='layout mmattn: .*dn_query'):
        convert_state_dict(ours | {'dn_query_generator.weight': torch.ones(3)})
    with pytest.raises(ValueError, match='not the weights of a Deformable DETR'):
        convert_state_dict({'backbone.conv1.weight': torch.ones(3)})
    other = 'transformer.decoder.bbox_embed.0.layers.0.bias'
    with pytest.raises(ValueError, match=f'{other} .*same weight, but .* differ'):
        convert_state_dict(official | {other: 1 + official[other]})
    with pytest.raises(ValueError, match='no weight for neck.lateral.weight'):
        to_official_state_dict(ours | {'neck.lateral.weight': torch.ones(3)})


def test_parts_of_a_checkpoint_are_left_to_who_loads_them():
    """`load_from` with a backbone alone, or with one of another detector."""
    model = MODELS.build(small.config())
    weights = {
        n: x for n, x in small.detector().state_dict().items() if 'backbone' in n
    }
    report = load_weights(model, weights)
    assert set(report.matched) == {n for n in weights if 'num_batches' not in n}


def test_one_level():
    cfg = small.config(neck=small.neck(in_channels=[64], num_outs=1))
    cfg['backbone']['out_indices'] = (3,)
    cfg['encoder']['num_levels'] = cfg['decoder']['num_levels'] = 1
    model = MODELS.build(cfg)
    official = to_official_state_dict(model.state_dict())
    levels = [name for name in official if name.startswith('input_proj.')]
    assert len(levels) == 4 and 'input_proj.0.0.bias' in levels
    model.load_state_dict(official)
