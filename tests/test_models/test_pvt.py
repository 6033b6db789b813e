"""PVT: official values, other code bases' weights, positions, and its attention."""

import re

import pytest
import torch
import torch.nn.functional as F
from golden import (
    assert_golden,
    golden,
    hashed_input,
    hashed_parameter,
    hashed_parameters,
)
from torch import nn
from torch.testing import assert_close

from mmattn.engine.checkpoints.weights import load_weights
from mmattn.models import PVT
from mmattn.models.backbones.pvt import (
    convert_state_dict,
    layout_of,
    to_official_state_dict,
)
from mmattn.models.layers import SpatialReductionAttention

SHALLOW = dict(PVT.arch_zoo['nano'], depths=(1, 2, 1, 1))
TOKEN = dict(out_type='cls_token')
PARAMETERS = {  # of the official code's, without its head
    'tiny': 13_229_288 - 513_000,
    'small': 24_485_864 - 513_000,
    'medium': 44_208_104 - 513_000,
    'large': 61_369_320 - 513_000,
}
DETECTION = {  # of the official code for detection
    'tiny': 12_714_752,
    'small': 23_971_328,
    'medium': 43_693_568,
    'large': 60_854_784,
}


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    model = PVT(arch, **kwargs).double().eval()
    for param in model.parameters():
        nn.init.normal_(param, std=0.2)
    return model


def image(*size):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch):
    with torch.device('meta'):
        model, classifier = PVT(arch), PVT(arch, **TOKEN)
    assert count(classifier) == PARAMETERS[arch]
    # There is no position of a class token that nothing looks at.
    assert count(model) == DETECTION[arch] - 512


# --- official values ----------------------------------------------------------------


def official_weights(arch):
    """Hashed weights with the official names, of the classifier."""
    with torch.device('meta'):
        names = to_official_state_dict(PVT(arch, **TOKEN).state_dict())
    return hashed_parameters(names)


def test_official_maps():
    record = golden('pvt')['pvt_tiny(detection/pvt.py)']
    model = PVT('tiny').double()
    result = model.load_state_dict(official_weights('tiny'), strict=False)
    assert not result.missing_keys
    assert result.unexpected_keys == ['cls_token', 'norm.weight', 'norm.bias']
    outs = model(hashed_input(*record['input']))
    for out, expected in zip(outs, record['outs'], strict=True):
        assert_golden(out, expected)


def test_official_logits():
    record = golden('pvt')['pvt_tiny(classification/pvt.py)']
    model = PVT('tiny', **TOKEN).double()
    model.load_state_dict(official_weights('tiny'))
    (token,) = model(hashed_input(*record['input']))
    weight = hashed_parameter('head.weight', (1000, 512))
    assert_golden(
        F.linear(token, weight, hashed_parameter('head.bias', (1000,))),
        record['logits'],
    )


# --- maps, class token, positions ---------------------------------------------------


def test_pixels_beyond_the_last_patch_are_not_seen():
    model = build()
    x = image(67, 94)
    outs = model(x)
    assert [out.shape[-2:] for out in outs] == [(16, 23), (8, 11), (4, 5), (2, 2)]
    assert_close(model(x[..., :64, :92]), outs)


def test_class_token_comes_last_and_needs_its_stage():
    x = image(64, 96)
    (token,) = build(**TOKEN)(x)
    first, both = build(**TOKEN, out_indices=(0, 3))(x)
    assert_close(both, token)
    assert token.shape == (2, 256) and first.shape == (2, 32, 16, 24)
    for kwargs in (
        dict(out_indices=2),
        dict(arch=dict(SHALLOW, sr_ratios=(8, 4, 2, 2))),
    ):
        with pytest.raises(ValueError, match='class token'):
            PVT(**{'arch': SHALLOW, **TOKEN, **kwargs})


@pytest.mark.parametrize(
    'kwargs, message',
    [(dict(out_type='avg'), "'avg'"), (dict(img_size=(64, 31)), '32.*31')],
    ids=str,
)
def test_wrong_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        PVT(SHALLOW, **kwargs)


def test_class_token_starts_from_itself_and_its_position_alone():
    model = build(**TOKEN)
    pixels = torch.randn(2, 49, 256, dtype=torch.float64)
    tokens = model.add_positions(pixels.unflatten(1, (7, 7)), 3)
    table = model.layers[3].pos_embed
    assert_close(tokens[0, 0], model.cls_token[0, 0] + table[0, 0])
    assert_close(tokens[:, 1:], pixels + table[:, 1:])
    model(image(64, 64))[0].sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize('kwargs', [{}, TOKEN], ids=['maps', 'class-token'])
def test_positions_are_resized_on_load_as_at_run_time(kwargs):
    source, x = build(img_size=64, **kwargs), image(64, 96)
    model = build(img_size=(64, 96), **kwargs)
    assert not torch.equal(source(x)[-1], model(x)[-1])
    report = load_weights(model, source.state_dict())
    assert set(report.resized) == {f'layers.{i}.pos_embed' for i in range(4)}
    assert_close(model(x), source(x))


def test_positions_of_other_grids_than_squares():
    source = build(img_size=(64, 96), **TOKEN)
    model = build(img_size=(64, 96))
    x = image(64, 96)
    load_weights(model, source.state_dict())
    assert_close(model.layers[3].pos_embed, source.layers[3].pos_embed[:, 1:])
    # How wide the grid of 6 x 4 was cannot be known.
    mismatched = load_weights(build(img_size=64), build(img_size=(96, 64)).state_dict())
    assert len(mismatched.mismatched) == 4
    assert model(x)[3].shape == (2, 256, 2, 3)


def test_a_class_tokens_position_is_not_invented():
    report = load_weights(build(**TOKEN), build().state_dict())
    assert set(report.mismatched) == {'layers.3.pos_embed'}
    assert {'cls_token', 'norm.weight', 'norm.bias'} < set(report.missing)


# --- other code bases ---------------------------------------------------------------


def huggingface_names(official):
    """Rename the official code's weights to those of `PvtForImageClassification`."""
    renamed = {}
    for name, value in official.items():
        first, *rest = name.split('.')
        stage = int(first[-1]) - 1 if first[-1].isdigit() else None
        rest = '.'.join(rest)
        if first.startswith('patch_embed'):
            rest = rest.replace('proj', 'projection').replace('norm', 'layer_norm')
            name = f'pvt.encoder.patch_embeddings.{stage}.{rest}'
        elif first.startswith('pos_embed'):
            name = f'pvt.encoder.patch_embeddings.{stage}.position_embeddings'
        elif first == 'cls_token':
            name = 'pvt.encoder.patch_embeddings.3.cls_token'
        elif first == 'norm':
            name = f'pvt.encoder.layer_norm.{rest}'
        elif first == 'head':
            name = f'classifier.{rest}'
        else:
            for theirs, ours in (
                (r'attn\.q\.', 'attention.self.query.'),
                (r'attn\.kv\.', 'attention.self.kv.'),
                (r'attn\.norm\.', 'attention.self.layer_norm.'),
                (r'attn\.sr\.', 'attention.self.sequence_reduction.'),
                (r'attn\.proj\.', 'attention.output.dense.'),
                (r'\.norm([12])\.', r'.layer_norm_\1.'),
                (r'mlp\.fc([12])\.', r'mlp.dense\1.'),
            ):
                rest = re.sub(theirs, ours, rest)
            name = f'pvt.encoder.block.{stage}.{rest}'
        if '.kv.' in name:
            for part, rows in zip(('key', 'value'), value.chunk(2), strict=True):
                renamed[name.replace('.kv.', f'.{part}.')] = rows
        else:
            renamed[name] = value
    return renamed


def test_official_and_hugging_faces_weights():
    source = build(**TOKEN)
    head = dict(weight=torch.ones(10, 256), bias=torch.zeros(10))
    ours = source.state_dict() | {f'head.{name}': value for name, value in head.items()}
    official = to_official_state_dict(ours)
    for layout, weights in (
        ('mmattn', ours),
        ('official', official),
        ('huggingface', huggingface_names(official)),
    ):
        assert layout_of(weights) == layout
        converted = convert_state_dict(weights)
        assert converted.keys() == ours.keys()
        assert_close(converted, ours)
        assert to_official_state_dict(weights).keys() == official.keys()
        model = nn.ModuleDict(dict(backbone=PVT(SHALLOW, **TOKEN).double()))
        weights = {f'backbone.{name}': value for name, value in weights.items()}
        report = load_weights(model, weights)
        assert not (report.missing or report.mismatched)
        assert set(report.unexpected) == {'backbone.head.weight', 'backbone.head.bias'}
        assert_close(model['backbone'].state_dict(), source.state_dict())


def test_official_names():
    names = to_official_state_dict(build(**TOKEN).state_dict())
    assert {
        'patch_embed1.proj.weight',
        'patch_embed4.norm.bias',
        'pos_embed4',
        'cls_token',
        'block2.1.attn.sr.weight',
        'block2.1.mlp.fc1.bias',
        'norm.weight',
    } <= names.keys()


def test_mmdets_weights():
    pvt = pytest.importorskip('mmdet.models.backbones.pvt')
    theirs = pvt.PyramidVisionTransformer(
        embed_dims=32, num_layers=list(SHALLOW['depths']), drop_path_rate=0
    ).double()
    source = build()
    # Their own conversion, from official names, wants the token's position.
    official = to_official_state_dict(source.state_dict())
    theirs.load_state_dict(pvt.pvt_convert(official))
    weights = theirs.state_dict()
    assert layout_of(weights) == 'mmdet'
    assert_close(convert_state_dict(weights), dict(source.state_dict()))
    model = PVT(SHALLOW).double()
    model.load_state_dict(weights)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    x = image(64, 96)
    assert_close(model(x), tuple(theirs.eval()(x)), rtol=1e-12, atol=1e-12)


def test_what_is_no_pvt():
    with pytest.raises(ValueError, match='conv1'):
        layout_of({'conv1.weight': torch.ones(1)})
    result = PVT(SHALLOW).load_state_dict({'conv1.weight': 1}, strict=False)
    assert result.unexpected_keys == ['conv1.weight']


# --- attention ----------------------------------------------------------------------


def attention(sr_ratio, num_heads=2):
    torch.manual_seed(0)
    return SpatialReductionAttention(8, num_heads, sr_ratio).double()


@pytest.mark.parametrize('sr_ratio', [1, 2, 3])
@pytest.mark.parametrize('num_heads', [1, 2])
def test_attention_is_its_definition(sr_ratio, num_heads):
    """Equations 3 to 5: patches of R x R pixels in a row, a linear layer, and heads."""
    layer = attention(sr_ratio, num_heads)
    B, H, W, R, D = 2, 7, 6, sr_ratio, 8 // num_heads
    x = torch.randn(B, H, W, 8, dtype=torch.float64)
    reduced = x.view(B, -1, 8)
    if R > 1:
        patches = x[:, : H // R * R, : W // R * R].unfold(1, R, R).unfold(2, R, R)
        reduced = F.linear(patches.flatten(3), layer.sr.weight.flatten(1))
        reduced = layer.norm(reduced.flatten(1, 2) + layer.sr.bias)
    q, k, v = (
        F.linear(of, weight, bias)
        for of, weight, bias in (
            (x.view(B, -1, 8), layer.q.weight, layer.q.bias),
            (reduced, layer.kv.weight[:8], layer.kv.bias[:8]),
            (reduced, layer.kv.weight[8:], layer.kv.bias[8:]),
        )
    )
    heads = []
    for head in range(num_heads):
        own = slice(head * D, (head + 1) * D)
        scores = q[..., own] @ k[..., own].mT / D**0.5
        heads.append(scores.softmax(-1) @ v[..., own])
    expected = F.linear(torch.cat(heads, -1), layer.proj.weight, layer.proj.bias)
    assert_close(layer(x), expected.view(x.shape))


def test_maps_smaller_than_the_ratio_have_one_key():
    layer = attention(4)
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    padded = F.pad(x, (0, 0, 0, 0, 0, 1))
    assert_close(layer.reduce(x), layer.reduce(padded))
    assert layer.reduce(x).shape == (2, 1, 2, 8)
    assert layer(x[:, :1, :1]).shape == (2, 1, 1, 8)


def test_attention_takes_tokens_without_a_grid():
    layer, x = attention(1), torch.randn(2, 6, 7, 8, dtype=torch.float64)
    assert_close(layer(x.flatten(1, 2)), layer(x).flatten(1, 2))


def test_heads_that_do_not_divide_the_channels():
    with pytest.raises(ValueError, match='8 and 3'):
        attention(1, num_heads=3)
