"""PVT and PVT v2: official values, other packages' models, positions, attention."""

from importlib import import_module

import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from golden import (
    assert_golden,
    golden,
    hashed_input,
    hashed_parameter,
    hashed_parameters,
)
from layer_checks import randn
from refusals import refuses
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from mmattn.models import PVT, PVTv2
from mmattn.models.backbones import pvt, pvt_v2
from mmattn.weights.load import load_weights

MODULES = {PVT: pvt, PVTv2: pvt_v2}
DEPTHS = (1, 2, 1, 1)
SHALLOW = dict(PVT.arch_zoo['nano'], depths=DEPTHS)
SHALLOW_V2 = dict(PVTv2.arch_zoo['b0'], depths=DEPTHS)
SHALLOW_MIT = dict(PVTv2.arch_zoo['mit_b0'], depths=DEPTHS)
TOKEN = dict(out_type='cls_token')
EXACT = dict(rtol=1e-12, atol=1e-12)


def randomize(model):
    torch.manual_seed(0)
    for name, param in model.named_parameters():
        nn.init.normal_(param, mean=float('norm' in name), std=0.1)
    return model.double().eval()


def build(arch=SHALLOW, **kwargs):
    return randomize(PVT(arch, **kwargs))


def build_v2(arch=SHALLOW_V2, **kwargs):
    return randomize(PVTv2(arch, **kwargs))


def with_equal_epsilons(*models):
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6


def image(*size):
    return randn(2, 3, *size)


@pytest.mark.parametrize(
    'record, cls, arch',
    [
        ('pvt_tiny(detection/pvt.py)', PVT, 'tiny'),
        ('pvt_v2_b0(detection/pvt_v2.py)', PVTv2, 'b0'),
        ('pvt_v2_b2_li(detection/pvt_v2.py)', PVTv2, 'b2_li'),
    ],
)
def test_official_maps(record, cls, arch):
    record, model = golden('pvt')[record], cls(arch).double()
    names = MODULES[cls].to_official_state_dict(model.state_dict())
    if cls is PVT:  # whose table has a class token's position that nothing looks at
        with torch.device('meta'):
            names = pvt.to_official_state_dict(PVT(arch, **TOKEN).state_dict())
    result = model.load_state_dict(hashed_parameters(names), strict=False)
    assert not result.missing_keys
    outs = model(hashed_input(*record['input']))
    for out, expected in zip(outs, record['outs'], strict=True):
        assert_golden(out, expected)


def test_official_logits():
    record = golden('pvt')['pvt_tiny(classification/pvt.py)']
    model = PVT('tiny', **TOKEN).double()
    names = pvt.to_official_state_dict(model.state_dict())
    model.load_state_dict(hashed_parameters(names))
    (token,) = model(hashed_input(*record['input']))
    weight = hashed_parameter('head.weight', (1000, 512))
    bias = hashed_parameter('head.bias', (1000,))
    assert_golden(F.linear(token, weight, bias), record['logits'])


@pytest.mark.parametrize('linear', [None, False, True], ids=['pvt', 'v2', 'v2-li'])
def test_models_of_transformers(linear):
    """It has other epsilons in places."""
    settings = dict(
        depths=DEPTHS,
        hidden_sizes=(32, 64, 160, 256),
        num_attention_heads=(1, 2, 5, 8),
        num_labels=10,
    )
    if linear is None:
        cfg = transformers.PvtConfig(image_size=64, **settings)
        peer = transformers.PvtForImageClassification(cfg)
        model = build(img_size=64, **TOKEN)
    else:
        cfg = transformers.PvtV2Config(linear_attention=linear, **settings)
        peer = transformers.PvtV2ForImageClassification(cfg)
        model = build_v2(dict(SHALLOW_V2, linear=linear))
    weights = randomize(peer).state_dict()
    module = MODULES[type(model)]
    assert module.layout_of(weights) == 'huggingface'
    report = load_weights(model, weights)
    assert not (report.missing or report.mismatched)
    assert set(report.unexpected) == {'head.weight', 'head.bias'}
    x = image(64, 64)
    last = model(x)[-1]
    if linear is not None:
        last = last.mean((2, 3))
    assert_close(peer.classifier(last), peer(x).logits, rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    'package, name, arch',
    [
        ('mmdet', 'PyramidVisionTransformer', SHALLOW),
        ('mmdet', 'PyramidVisionTransformerV2', SHALLOW_V2),
        ('mmseg', 'MixVisionTransformer', SHALLOW_MIT),
    ],
)
def test_models_of_mm_packages(package, name, arch):
    cls = PVT if arch is SHALLOW else PVTv2
    backbones = import_module(f'{package}.models.backbones')
    settings = dict(drop_path_rate=0)
    if arch is SHALLOW_MIT:
        settings['num_heads'] = arch['num_heads']
    peer = getattr(backbones, name)(embed_dims=32, num_layers=DEPTHS, **settings)
    weights = randomize(peer).state_dict()
    assert MODULES[cls].layout_of(weights) == 'mmdet'
    model = cls(arch).double().eval()
    model.load_state_dict(weights)
    with_equal_epsilons(model, peer)
    x = image(64, 96)
    assert_close(model(x), tuple(peer(x)), **EXACT)


@pytest.mark.parametrize(
    'name, saved',
    [
        ('SegformerModel', False),
        ('SegformerModel', True),
        ('SegformerForImageClassification', True),
        ('SegformerForSemanticSegmentation', False),
    ],
)
def test_encoders_of_segformer(name, saved, tmp_path):
    """Files of transformers have other names than its models in memory."""
    cfg = transformers.SegformerConfig(depths=DEPTHS, num_labels=10)
    peer = randomize(getattr(transformers, name)(cfg))
    weights = peer.state_dict()
    if saved:
        peer.save_pretrained(tmp_path)
        weights = load_file(tmp_path / 'model.safetensors')
        assert any('encoder.block.0.0.' in key for key in weights)
    model = PVTv2(SHALLOW_MIT).double().eval()
    report = load_weights(model, weights)
    assert not (report.missing or report.mismatched)
    heads = {name.partition('.')[0] for name in report.unexpected}
    assert heads <= {'head', 'decode_head'}
    with_equal_epsilons(model, peer)
    encoder, x = getattr(peer, 'segformer', peer), image(64, 96)
    with torch.no_grad():
        expected = encoder(x, output_hidden_states=True).hidden_states
        assert_close(model(x), tuple(expected), **EXACT)


def test_names_of_the_authors_of_segformer():
    """They equal mmseg/models/backbones/mix_transformer.py in NVlabs/SegFormer."""
    layers = 'norm1', 'attn.q', 'attn.kv', 'attn.proj', 'norm2'
    layers += 'mlp.fc1', 'mlp.dwconv.dwconv', 'mlp.fc2'
    reduction = 'attn.sr', 'attn.norm'
    modules = []
    for i, depth in enumerate(DEPTHS, 1):
        modules += [f'patch_embed{i}.proj', f'patch_embed{i}.norm', f'norm{i}']
        for name in layers + reduction * (i < 4):
            modules += [f'block{i}.{block}.{name}' for block in range(depth)]
    names = {f'{name}.{kind}' for name in modules for kind in ('weight', 'bias')}
    model = build_v2(SHALLOW_MIT)
    theirs = pvt_v2.to_official_state_dict(model.state_dict())
    assert names == theirs.keys()
    assert_close(pvt_v2.convert_state_dict(theirs), model.state_dict())


@pytest.mark.parametrize('arch', ['b0', 'b2_li', 'b5'])
def test_models_of_timm(arch):
    peer = randomize(timm.create_model(f'pvt_v2_{arch}', depths=DEPTHS))
    model = build_v2(dict(PVTv2.arch_zoo[arch], depths=DEPTHS))
    weights = peer.state_dict()
    assert pvt_v2.layout_of(weights) == 'timm'
    result = model.load_state_dict(weights, strict=False)
    assert not result.missing_keys
    assert result.unexpected_keys == ['head.weight', 'head.bias']
    x = image(64, 96)
    with torch.no_grad():
        outs, expected = model(x), peer.forward_intermediates(x)[1]
        assert_close(list(outs), expected, **EXACT)
        assert_close(peer.head(outs[-1].mean((2, 3))), peer(x), **EXACT)


@pytest.mark.parametrize('make', [lambda: build(**TOKEN), build_v2], ids=['pvt', 'v2'])
def test_official_names_and_back(make):
    source = make()
    module, ours = MODULES[type(source)], source.state_dict()
    ours |= {'head.weight': torch.ones(10, 256)}
    official = module.to_official_state_dict(ours)
    for layout, weights in (('official', official), ('mmattn', ours)):
        assert module.layout_of(weights) == layout
        converted = module.convert_state_dict(weights)
        assert converted.keys() == ours.keys()
        assert_close(converted, ours)
        assert_close(module.to_official_state_dict(weights), official)
    parent = nn.ModuleDict(dict(backbone=make()))
    report = load_weights(parent, {f'backbone.{n}': v for n, v in official.items()})
    assert not (report.missing or report.mismatched)
    assert report.unexpected == ['backbone.head.weight']
    with pytest.raises(ValueError, match='conv1'):
        module.layout_of({'conv1.weight': torch.ones(1)})
    result = make().load_state_dict({'conv1.weight': 1}, strict=False)
    assert result.unexpected_keys == ['conv1.weight']


def test_pixels_beyond_the_last_patch_are_not_seen():
    model = build()
    x = image(67, 94)
    outs = model(x)
    assert [out.shape[-2:] for out in outs] == [(16, 23), (8, 11), (4, 5), (2, 2)]
    assert_close(model(x[..., :64, :92]), outs)


def test_class_token_comes_last_and_needs_its_stage():
    model, x = build(**TOKEN), image(64, 96)
    (token,) = model(x)
    first, both = build(**TOKEN, out_indices=(0, 3))(x)
    assert first.shape == (2, 32, 16, 24) and both.shape == token.shape == (2, 256)
    token.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


test_wrong_settings = refuses(
    build,
    (dict(out_type='avg'), "'avg'"),
    (dict(img_size=(64, 31)), '32.*31'),
    (dict(TOKEN, out_indices=2), 'class token'),
    (dict(TOKEN, arch=dict(SHALLOW, sr_ratios=(8, 4, 2, 2))), 'class token'),
)


@pytest.mark.parametrize('kwargs', [{}, TOKEN], ids=['maps', 'class-token'])
def test_positions_are_resized_on_load_as_at_run_time(kwargs):
    source, x = build(img_size=64, **kwargs), image(64, 96)
    model = build(img_size=(64, 96), **kwargs)
    report = load_weights(model, source.state_dict())
    assert len(report.resized) == 4
    assert all(name.endswith('pos_embed') for name in report.resized)
    assert_close(model(x), source(x))


def test_positions_that_do_not_fit():
    # How wide the grid of 6 x 4 was cannot be known.
    report = load_weights(build(img_size=64), build(img_size=(96, 64)).state_dict())
    assert len(report.mismatched) == 4
    # A class token's position is not invented, but dropped where none is needed.
    report = load_weights(build(**TOKEN), build().state_dict())
    assert len(report.mismatched) == 1
    ends = 'downsample.cls_token', 'out_norms.3.weight', 'out_norms.3.bias'
    assert all(any(n.endswith(end) for n in report.missing) for end in ends)
    token, model = build(**TOKEN, img_size=(64, 96)), build(img_size=(64, 96))
    assert not load_weights(model, token.state_dict()).mismatched
    (name,) = report.mismatched
    assert_close(model.get_parameter(name), token.get_parameter(name)[:, 1:])


def test_a_table_that_looks_like_one_with_a_token_is_kept():
    """Stage 3 has 2 x 5 positions, one more than a square of 3 x 3."""
    settings = dict(img_size=(32, 80))
    model, loaded = build(**settings), PVT(SHALLOW, **settings).double()
    loaded.load_state_dict(model.state_dict())
    assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize('switch', ['overlap', 'conv_mlp'])
def test_switches_of_the_ablation(switch):
    """Table 6 of the paper; parameters without a part keep their names."""
    whole, model = build_v2(), build_v2(**{switch: False})
    kept, names = ({n for n, _ in m.named_parameters()} for m in (model, whole))
    assert kept <= names and bool(names - kept) == (switch == 'conv_mlp')
    assert all('dwconv' in name for name in names - kept)
    outs = model(image(64, 96))
    assert [out.shape[2:] for out in outs] == [(16 >> i, 24 >> i) for i in range(4)]
    if switch == 'overlap':  # patches are whole, one beside the other
        sizes = [tuple(p.shape[2:]) for n, p in model.named_parameters() if p.dim() > 3]
        assert (7, 7) not in sizes and sizes.count((2, 2)) >= 3
