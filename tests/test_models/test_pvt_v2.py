"""PVT v2: official values, the weights of other code bases, and its parts."""

import re

import pytest
import timm
import torch
import torch.nn.functional as F
from golden import assert_golden, golden, hashed_input, hashed_parameters
from torch import nn
from torch.testing import assert_close

from mmattn.engine.checkpoints.weights import load_weights
from mmattn.models import PVTv2
from mmattn.models.backbones.pvt_v2 import (
    ConvMlp,
    convert_state_dict,
    layout_of,
    to_official_state_dict,
)
from mmattn.models.layers import LinearSpatialReductionAttention

SHALLOW = dict(PVTv2.arch_zoo['b0'], depths=(1, 2, 1, 1))
PARAMETERS = {  # of the official code's for detection, without a head
    'b0': 3_409_760,
    'b1': 13_496_000,
    'b2': 24_849_856,
    'b2-li': 22_040_512,
    'b3': 44_725_696,
    'b4': 62_043_072,
    'b5': 81_443_008,
}
EXACT = dict(rtol=1e-12, atol=1e-12)


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    with torch.device('meta'):
        model = PVTv2(arch, **kwargs).double().eval()
    return randomize(model.to_empty(device='cpu'))


def randomize(model):
    for name, param in model.named_parameters():
        nn.init.normal_(param, mean=float('norm' in name), std=0.1)
    return model


def image(*size):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch):
    with torch.device('meta'):
        model = PVTv2(arch)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[arch]


@pytest.mark.parametrize('arch', ['b0', 'b2-li'])
def test_official_maps(arch):
    record = golden('pvt')[f'pvt_v2_{arch.replace("-", "_")}(detection/pvt_v2.py)']
    model = build(arch)
    names = to_official_state_dict(model.state_dict())
    model.load_state_dict(hashed_parameters(names))
    outs = model(hashed_input(*record['input']))
    for out, expected in zip(outs, record['outs'], strict=True):
        assert_golden(out, expected)


@pytest.mark.parametrize(
    'switch, added',
    [
        ('overlap', 33 * 3 * 32 + 5 * (32 * 64 + 64 * 160 + 160 * 256)),
        ('conv_mlp', 10 * (256 + 2 * 512 + 640 + 1024)),
    ],
)
def test_switches_of_the_ablation(switch, added):
    """Table 6 of the paper; parameters without a part keep their names."""
    whole, model = build(), build(**{switch: False})
    names = dict(model.named_parameters())
    counts = [sum(p.numel() for p in m.parameters()) for m in (whole, model)]
    assert counts[0] - counts[1] == added
    missing = dict(whole.named_parameters()).keys() - names
    assert all('dwconv' in name for name in missing)
    assert bool(missing) == (switch == 'conv_mlp')
    outs = model(image(64, 96))
    assert [out.shape[2:] for out in outs] == [(16 >> i, 24 >> i) for i in range(4)]


def test_linear_attention_is_the_arch_s_or_the_argument_s():
    linear, plain = build(linear=True), build(dict(SHALLOW, linear=True), linear=False)
    for model, is_linear in ((linear, True), (plain, False), (build(), False)):
        block = model.layers[0].blocks[0]
        assert isinstance(block.attn, LinearSpatialReductionAttention) == is_linear
        assert isinstance(block.mlp.relu, nn.ReLU) == is_linear


def test_patches_without_overlap_are_convolutions_of_whole_patches():
    model, x = build(overlap=False), image(64, 64)
    stem = model.patch_embed.proj
    patches = F.unfold(x, 4, stride=4).mT  # (B, N, 48)
    expected = F.linear(patches, stem.weight.flatten(1), stem.bias)
    assert_close(stem(x).flatten(2).mT, expected, **EXACT)


def test_zero_padding_does_not_blow_up_gradients():
    """Detectors pad images with zeros; a norm of exact zeros multiplies by 300."""
    torch.manual_seed(0)
    model = PVTv2(SHALLOW)
    images = torch.randn(2, 3, 64, 64)
    padded = images.clone()
    padded[1, :, 32:] = 0
    norms = []
    for x in (images, padded):
        model.zero_grad()
        sum((out * out.detach().cos()).sum() for out in model(x)).backward()
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
    assert norms[1] < 10 * norms[0]


# --- other code bases ---------------------------------------------------------------

TIMM = {  # ours and the depths that make it small
    'pvt_v2_b0': ('b0', (2, 2, 2, 2)),
    'pvt_v2_b2_li': ('b2-li', (1, 2, 1, 1)),
    'pvt_v2_b5': ('b5', (1, 1, 1, 1)),
}


def timms(name, **kwargs):
    with torch.device('meta'):
        theirs = timm.create_model(name, **kwargs)
    return randomize(theirs.to_empty(device='cpu').double().eval())


def assert_equals_timms(theirs, model):
    weights = theirs.state_dict()
    assert layout_of(weights) == 'timm'
    result = model.load_state_dict(weights, strict=False)
    assert not result.missing_keys
    assert result.unexpected_keys == ['head.weight', 'head.bias']
    x = image(64, 96)
    with torch.no_grad():
        outs, expected = model(x), theirs.forward_intermediates(x)[1]
        assert_close(list(outs), expected, **EXACT)
        assert_close(theirs.head(outs[-1].mean((2, 3))), theirs(x), **EXACT)


@pytest.mark.parametrize('name', TIMM)
def test_timms_models_shallow(name):
    arch, depths = TIMM[name]
    arch = dict(PVTv2.arch_zoo[arch], depths=depths)
    assert_equals_timms(timms(name, depths=depths), build(arch))


@pytest.mark.slow
@pytest.mark.parametrize('arch', PARAMETERS)
def test_timms_models(arch):
    assert_equals_timms(timms(f'pvt_v2_{arch.replace("-", "_")}'), build(arch))


def test_mmdets_weights():
    pvt = pytest.importorskip('mmdet.models.backbones.pvt')
    theirs = pvt.PyramidVisionTransformerV2(
        embed_dims=32, num_layers=list(SHALLOW['depths']), drop_path_rate=0
    ).double()
    source = build()
    theirs.load_state_dict(pvt.pvt_convert(to_official_state_dict(source.state_dict())))
    weights = theirs.state_dict()
    assert layout_of(weights) == 'mmdet'
    assert_close(convert_state_dict(weights), dict(source.state_dict()))
    model = PVTv2(SHALLOW).double()
    model.load_state_dict(weights)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    x = image(64, 96)
    assert_close(model(x), tuple(theirs.eval()(x)), **EXACT)


def huggingface_names(official):
    """Rename the official code's weights to those of `PvtV2ForImageClassification`."""
    renamed = {}
    for name, value in official.items():
        for theirs, ours in (
            (r'head\.', 'classifier.'),
            (r'patch_embed(\d)\.proj\.', r'encoder.layers.\1.patch_embedding.proj.'),
            (r'patch_embed(\d)\.norm', r'encoder.layers.\1.patch_embedding.layer_norm'),
            (r'norm(\d)\.', r'encoder.layers.\1.layer_norm.'),
            (r'block(\d)\.(\d+)\.', r'encoder.layers.\1.blocks.\2.'),
            (r'(.*)\.attn\.norm\.', r'\1.attention.layer_norm.'),
            (r'(.*)\.attn\.sr\.', r'\1.attention.spatial_reduction.'),
            (r'(.*)\.attn\.q\.', r'\1.attention.query.'),
            (r'(.*)\.attn\.', r'\1.attention.'),
            (r'(.*)\.norm([12])\.', r'\1.layer_norm_\2.'),
            (r'(.*)\.mlp\.fc([12])\.', r'\1.mlp.dense\2.'),
        ):
            name = re.sub(f'^{theirs}', ours, name)
        stage = re.match(r'encoder\.layers\.(\d)', name)
        if stage is not None:
            number = int(stage[1]) - 1
            name = f'pvt_v2.encoder.layers.{number}{name[stage.end() :]}'
        if '.kv.' in name:
            for part, rows in zip(('key', 'value'), value.chunk(2), strict=True):
                renamed[name.replace('.kv.', f'.{part}.')] = rows
        else:
            renamed[name] = value
    return renamed


@pytest.mark.parametrize('linear', [False, True], ids=['sra', 'linear'])
def test_every_layout_converts_to_ours_and_back(linear):
    source = build(dict(SHALLOW, linear=linear))
    ours = source.state_dict() | {'head.weight': torch.ones(10, 256)}
    official = to_official_state_dict(ours)
    assert {
        'patch_embed4.norm.bias',
        'block2.1.attn.sr.weight',
        'block2.1.mlp.dwconv.dwconv.bias',
        'norm4.weight',
        'head.weight',
    } <= official.keys()
    timms = {name.replace('layers.', 'stages.'): value for name, value in ours.items()}
    for layout, weights in (
        ('mmattn', ours),
        ('official', official),
        ('timm', timms),
        ('huggingface', huggingface_names(official)),
    ):
        assert layout_of(weights) == layout
        converted = convert_state_dict(weights)
        assert converted.keys() == ours.keys()
        assert_close(converted, ours)
        back = to_official_state_dict(weights)
        assert back.keys() == official.keys()
        assert_close(back, official)
        model = nn.ModuleDict(dict(backbone=PVTv2(dict(SHALLOW, linear=linear))))
        weights = {f'backbone.{name}': value for name, value in weights.items()}
        report = load_weights(model.double(), weights)
        assert not (report.missing or report.mismatched)
        assert report.unexpected == ['backbone.head.weight']
        assert_close(model['backbone'].state_dict(), source.state_dict())


# --- parts --------------------------------------------------------------------------


@pytest.mark.parametrize('relu', [False, True], ids=['gelu', 'relu-and-gelu'])
def test_mlp_is_its_definition(relu):
    torch.manual_seed(0)
    layer = ConvMlp(6, 12, relu).double()
    x = torch.randn(2, 5, 7, 6, dtype=torch.float64)
    hidden = F.linear(x, layer.fc1.weight, layer.fc1.bias)
    hidden = F.pad(hidden.relu() if relu else hidden, (0, 0, 1, 1, 1, 1))
    mixed = sum(
        hidden[:, y : y + 5, x : x + 7] * layer.dwconv.weight[:, 0, y, x]
        for y in range(3)
        for x in range(3)
    )
    hidden = F.gelu(mixed + layer.dwconv.bias)
    assert_close(layer(x), F.linear(hidden, layer.fc2.weight, layer.fc2.bias))


@pytest.mark.parametrize('grid', [(14, 21), (9, 5), (1, 1)], ids=str)
def test_linear_attention_sees_a_pooled_map(grid):
    torch.manual_seed(0)
    layer = LinearSpatialReductionAttention(8, 2).double()
    x = torch.randn(2, *grid, 8, dtype=torch.float64)
    rows, columns = (
        [slice(i * side // 7, -((i + 1) * side // -7)) for i in range(7)]
        for side in grid
    )
    cells = [x[:, row, column].mean((1, 2)) for row in rows for column in columns]
    pooled = F.linear(torch.stack(cells, 1), layer.sr.weight[..., 0, 0], layer.sr.bias)
    keys_of = F.gelu(layer.norm(pooled))
    assert_close(layer.reduce(x).flatten(1, 2), keys_of)
    k, v = layer.kv(keys_of).chunk(2, -1)
    q, k, v = (
        part.unflatten(-1, (2, 4)).transpose(1, 2)
        for part in (layer.q(x).flatten(1, 2), k, v)
    )
    out = (q @ k.mT / 2).softmax(-1) @ v
    expected = layer.proj(out.transpose(1, 2).flatten(2))
    assert_close(layer(x).flatten(1, 2), expected)


def test_every_stage_of_b2_li_has_linear_attention():
    with torch.device('meta'):
        model = PVTv2('b2-li')
    for layer in model.layers:
        for block in layer.blocks:
            assert isinstance(block.attn, LinearSpatialReductionAttention)
            assert isinstance(block.mlp.relu, nn.ReLU)


@pytest.mark.parametrize('size', [(16, 16), (5, 20)], ids=str)
def test_images_below_the_last_stride(size):
    """Maps are smaller than the reduction there."""
    assert build()(image(*size))[-1].shape == (2, 256, 1, 1)
