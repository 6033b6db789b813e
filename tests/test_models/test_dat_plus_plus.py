"""DAT++: golden values, the official forward from official weights, conversion."""

import pytest
import torch
import torch.nn.functional as F
from golden import assert_golden, golden, hashed_input, hashed_parameter
from resampling import resized
from torch import nn
from torch.testing import assert_close

from mmattn.engine.checkpoints.weights import load_weights
from mmattn.models import DATPlusPlus
from mmattn.models.backbones.dat_plus_plus import (
    ResidualConvMlp,
    convert_state_dict,
    layout_of,
)
from mmattn.models.layers import DeformableAttention, NeighborhoodAttention
from mmattn.ops.neighborhood_attention import neighborhood_attention_reference

ARCH = dict(
    embed_dims=(8, 16, 24, 32),
    depths=(2, 1, 3, 2),
    num_heads=(2, 4, 3, 8),
    num_groups=(1, 2, 3, 4),
)
PARAMETERS = {'tiny': 23_962_876, 'small': 53_127_366, 'base': 93_690_640}
NEIGHBORS, DEFORMED = 'N', 'D'
KERNELS, STRIDES = (9, 7, 5, 3), (8, 4, 2, 1)  # of the offset networks


def kind(arch, stage, block):
    return NEIGHBORS if stage < 3 and block % 2 == 0 else DEFORMED


def official_shapes(arch, side=64, num_classes=10, detector=False):
    """Names and shapes of an official checkpoint for images of side x side."""
    dims = arch['embed_dims']
    shapes = {}

    def affine(name, *shape):
        shapes[f'{name}.weight'] = shape
        shapes[f'{name}.bias'] = shape[:1]

    affine('patch_proj.0', dims[0] // 2, 3, 3, 3)
    affine('patch_proj.1.norm', dims[0] // 2)
    affine('patch_proj.3', dims[0], dims[0] // 2, 3, 3)
    affine('patch_proj.4.norm', dims[0])
    for s, (C, M, G, depth) in enumerate(
        zip(dims, arch['num_heads'], arch['num_groups'], arch['depths'], strict=True)
    ):
        if s:
            shapes[f'down_projs.{s - 1}.0.weight'] = (C, dims[s - 1], 3, 3)
            affine(f'down_projs.{s - 1}.1.norm', C)
        if detector:
            affine(f'norms.{s}.norm', C)
        for d in range(depth):
            attn, mlp = f'stages.{s}.attns.{d}', f'stages.{s}.mlps.{d}'
            affine(f'stages.{s}.local_perception_units.{d}', C, 1, 3, 3)
            affine(f'stages.{s}.layer_norms.{2 * d}.norm', C)
            affine(f'stages.{s}.layer_norms.{2 * d + 1}.norm', C)
            affine(f'{mlp}.linear1.0', 4 * C, C, 1, 1)
            affine(f'{mlp}.dwc', 4 * C, 1, 3, 3)
            affine(f'{mlp}.linear2.0', C, 4 * C, 1, 1)
            if kind(arch, s, d) == NEIGHBORS:
                affine(f'{attn}.qkv', 3 * C, C)
                affine(f'{attn}.proj', C, C)
                shapes[f'{attn}.rpb'] = (M, 13, 13)
                continue
            k = KERNELS[s]
            affine(f'{attn}.conv_offset.0', C // G, 1, k, k)
            affine(f'{attn}.conv_offset.1.norm', C // G)
            shapes[f'{attn}.conv_offset.3.weight'] = (2, C // G, 1, 1)
            for name in ('q', 'k', 'v', 'out'):
                affine(f'{attn}.proj_{name}', C, C, 1, 1)
            shapes[f'{attn}.rpe_table'] = (M, *(2 * (side >> s + 2) - 1,) * 2)
    if not detector:
        affine('cls_norm.norm', dims[3])
        affine('cls_head', num_classes, dims[3])
    return shapes


def official_weights(arch=ARCH, **kwargs):
    return {
        name: hashed_parameter(name, shape)
        for name, shape in official_shapes(arch, **kwargs).items()
    }


class Official:
    """The forward of an official state dict, channels first."""

    def __init__(self, weights, arch):
        self.weights, self.arch = weights, arch

    def get(self, name):
        return self.weights.get(f'{name}.weight'), self.weights.get(f'{name}.bias')

    def norm(self, name, x):
        x = F.layer_norm(x.movedim(1, -1), x.shape[1:2], *self.get(f'{name}.norm'))
        return x.movedim(-1, 1)

    def conv(self, name, x, **kwargs):
        return F.conv2d(x, *self.get(name), **kwargs)

    def depthwise(self, name, x):
        return self.conv(name, x, padding=1, groups=x.shape[1])

    def neighbors(self, name, x, M):
        _, C, H, W = x.shape
        x = F.pad(x, (0, max(0, 7 - W), 0, max(0, 7 - H))).movedim(1, -1)
        qkv = F.linear(x, *self.get(f'{name}.qkv')).unflatten(-1, (3, M, C // M))
        out = neighborhood_attention_reference(
            *qkv.unbind(3), self.weights[f'{name}.rpb']
        )[:, :H, :W]
        return F.linear(out.flatten(3), *self.get(f'{name}.proj')).movedim(-1, 1)

    def deformed(self, name, x, M, G, stride):
        B, C, H, W = x.shape
        q = self.conv(f'{name}.proj_q', x)
        weight, bias = self.get(f'{name}.conv_offset.0')
        h = q.reshape(B * G, C // G, H, W)
        padding = weight.shape[-1] // 2
        h = F.conv2d(h, weight, bias, stride, padding, groups=C // G)
        h = F.gelu(self.norm(f'{name}.conv_offset.1', h))
        offset = self.conv(f'{name}.conv_offset.3', h).movedim(1, -1)
        reference = [
            (torch.arange(side).double() + 0.5) / (side - 1) * 2 - 1
            for side in offset.shape[1:3]
        ]
        reference = torch.stack(torch.meshgrid(*reference, indexing='ij'), -1)
        pos = (reference + offset).clamp(-1, 1)
        sampled = F.grid_sample(
            x.reshape(B * G, C // G, H, W), pos.flip(-1), align_corners=True
        ).view(B, C, *pos.shape[1:3])
        k, v = (self.conv(f'{name}.proj_{n}', sampled) for n in 'kv')
        q, k, v = (t.reshape(B, M, C // M, -1).mT for t in (q, k, v))
        lines = [torch.linspace(-1, 1, side, dtype=torch.double) for side in (H, W)]
        grid = torch.stack(torch.meshgrid(*lines, indexing='ij'), -1)
        displacement = grid.view(1, -1, 1, 2) - pos.view(B * G, 1, -1, 2)
        table = self.weights[f'{name}.rpe_table'].unflatten(0, (G, M // G))
        bias = F.grid_sample(
            table.repeat(B, 1, 1, 1), displacement.flip(-1) / 2, align_corners=True
        ).view(B, M, H * W, -1)
        out = (q @ k.mT * (C // M) ** -0.5 + bias).softmax(-1) @ v
        return self.conv(f'{name}.proj_out', out.mT.reshape(B, C, H, W))

    def block(self, s, d, x):
        M, G = self.arch['num_heads'][s], self.arch['num_groups'][s]
        attn, mlp = f'stages.{s}.attns.{d}', f'stages.{s}.mlps.{d}'
        x = x + self.depthwise(f'stages.{s}.local_perception_units.{d}', x)
        h = self.norm(f'stages.{s}.layer_norms.{2 * d}', x)
        if kind(self.arch, s, d) == NEIGHBORS:
            x = x + self.neighbors(attn, h, M)
        else:
            x = x + self.deformed(attn, h, M, G, STRIDES[s])
        h = self.norm(f'stages.{s}.layer_norms.{2 * d + 1}', x)
        h = self.conv(f'{mlp}.linear1.0', h)
        h = F.gelu(h + self.depthwise(f'{mlp}.dwc', h))
        return x + self.conv(f'{mlp}.linear2.0', h)

    def __call__(self, x):
        """Maps before any norm of outputs."""
        x = self.conv('patch_proj.0', x, stride=2, padding=1)
        x = F.gelu(self.norm('patch_proj.1', x))
        x = self.conv('patch_proj.3', x, stride=2, padding=1)
        x = self.norm('patch_proj.4', x)
        maps = []
        for s, depth in enumerate(self.arch['depths']):
            if s:
                x = self.conv(f'down_projs.{s - 1}.0', x, stride=2, padding=1)
                x = self.norm(f'down_projs.{s - 1}.1', x)
            for d in range(depth):
                x = self.block(s, d, x)
            maps.append(x)
        return maps


# --- golden values ------------------------------------------------------------------


def hashed_module(module, official_names):
    """Sets a module's parameters by the hash of their official names."""
    with torch.no_grad():
        for ours, param in module.named_parameters():
            name = official_names(ours)
            shape = param.shape
            if param.dim() == 2 and name != 'rpe_table':
                shape = (*shape, 1, 1)
            param.copy_(hashed_parameter(name, shape).view_as(param))
    return module.double()


def test_conv_mlp_is_the_official_one():
    names = {'fc1': 'linear1.0', 'fc2': 'linear2.0', 'dwconv': 'dwc'}
    mlp = hashed_module(
        ResidualConvMlp(64).double(),
        lambda ours: '.'.join([names[ours.split('.')[0]], ours.split('.')[1]]),
    )
    x = hashed_input(2, 64, 14, 14).permute(0, 2, 3, 1)
    assert_golden(
        mlp(x).permute(0, 3, 1, 2), golden('dat2')['DAT++ conv MLP C=64 map=14']
    )


@pytest.mark.parametrize(
    'sides, settings',
    [
        ('H=56 C=64 heads=2 groups=1', dict(kernel_size=9, stride=8)),
        ('H=14 C=256 heads=8 groups=4', dict(kernel_size=5, stride=2)),
    ],
    ids=['stage-1', 'stage-3'],
)
def test_deformable_attention_is_the_official_one(sides, settings):
    key = f'DAT++ D attention {sides} stride={settings["stride"]} '
    record = golden('dat2')[key + f'k={settings["kernel_size"]}']
    H, C, M, G = (int(part.split('=')[1]) for part in sides.split())
    layer = hashed_module(
        DeformableAttention(C, M, G, (H, H), version=2, **settings).double(),
        lambda ours: ours.replace('conv_offset.1.', 'conv_offset.1.norm.'),
    )
    x = hashed_input(*record['input']).permute(0, 2, 3, 1)
    assert_golden(layer(x).permute(0, 3, 1, 2), record['y'])
    positions = layer.sampled_positions(x).flip(-1)  # (y, x)
    assert_golden(positions.view(record['pos']['shape']), record['pos'])


# --- the network --------------------------------------------------------------------


@pytest.mark.parametrize(
    'detector, size',
    [(False, (33, 40)), (True, (61, 90))],
    ids=['classifier', 'detector'],
)
def test_maps_and_gradients_are_the_official_ones(detector, size):
    """Images have another size than the tables, and maps are smaller than windows."""
    weights = official_weights(detector=detector)
    model = DATPlusPlus(ARCH, img_size=64, out_indices=None if detector else 3)
    report = load_weights(model.double(), weights)
    assert not (report.missing or report.mismatched or report.resized)
    assert {name.split('.')[0] for name in report.unexpected} <= {'cls_head'}
    weights = {name: w.requires_grad_() for name, w in weights.items()}
    official = Official(weights, ARCH)
    x = hashed_input(1, 3, *size)
    maps = official(x)
    if detector:
        expected = [official.norm(f'norms.{s}', y) for s, y in enumerate(maps)]
    else:
        expected = [official.norm('cls_norm', maps[-1])]
    outs = model(x)
    for out, theirs in zip(outs, expected, strict=True):
        assert_close(out, theirs, rtol=1e-12, atol=1e-12)
    sum((y * y.detach().cos()).sum() for y in expected).backward()
    sum((y * y.detach().cos()).sum() for y in outs).backward()
    grads = {n: w.grad for n, w in weights.items() if w.grad is not None}
    for name, grad in convert_state_dict(grads).items():
        actual = model.get_parameter(name).grad
        assert_close(actual, grad, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters_and_official_names(arch):
    """The keys are those of a classifier of 1000 classes."""
    with torch.device('meta'):
        model = DATPlusPlus(arch, out_indices=3)
        shapes = official_shapes(model.arch_zoo[arch], side=224, num_classes=1000)
        weights = {name: torch.empty(shape) for name, shape in shapes.items()}
    assert sum(w.numel() for w in weights.values()) == PARAMETERS[arch]
    converted = convert_state_dict(weights)
    own = {name: w.shape for name, w in model.state_dict().items()}
    heads = {name: w for name, w in converted.items() if name.startswith('cls_head')}
    assert len(heads) == 2
    assert {n: w.shape for n, w in converted.items() if n not in heads} == own


def test_blocks_alternate_but_in_the_last_stage():
    with torch.device('meta'):
        model = DATPlusPlus('tiny')
    for stage, (layer, depth) in enumerate(
        zip(model.layers, (2, 4, 18, 2), strict=True)
    ):
        types = [type(block.attn) for block in layer.blocks]
        if stage == 3:
            assert types == [DeformableAttention] * depth
        else:
            pair = [NeighborhoodAttention, DeformableAttention]
            assert types == pair * (depth // 2)
        conv = layer.blocks[-1].attn.conv_offset[0]
        assert conv.kernel_size[0] == KERNELS[stage]
        assert conv.stride[0] == STRIDES[stage]


def test_tables_of_another_size_are_resized_on_load():
    weights = official_weights()
    model = DATPlusPlus(ARCH, img_size=96)
    assert not load_weights(model, weights).mismatched
    table = model.layers[0].blocks[1].attn.rpe_table
    loaded = weights['stages.0.attns.1.rpe_table'].float()
    assert (table.shape, loaded.shape) == ((2, 47, 47), (2, 31, 31))
    expected = resized(loaded, (47, 47))
    assert_close(table.data.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('out_indices', [(1, 3), 2], ids=str)
def test_norms_end_the_maps(out_indices):
    torch.manual_seed(0)
    model = DATPlusPlus(ARCH, out_indices=out_indices)
    for out in model(torch.randn(1, 3, 64, 96)):
        assert_close(out.mean(1), torch.zeros(out[:, 0].shape), atol=1e-5, rtol=0)
    plain = DATPlusPlus(ARCH, out_indices=out_indices, out_norm=False)
    assert not any('norms' in name for name in plain.state_dict())


def test_tables_do_not_decay_but_offset_networks_do():
    model = DATPlusPlus(ARCH)
    names = model.no_weight_decay()
    assert {name.split('.')[-1] for name in names} == {'rpb', 'rpe_table'}


def test_zero_padding_does_not_blow_up_gradients():
    """Detectors pad images with zeros; a norm of exact zeros multiplies by 300."""
    torch.manual_seed(0)
    model = DATPlusPlus(ARCH)
    images = torch.randn(2, 3, 64, 64)
    padded = images.clone()
    padded[1, :, 32:] = 0
    norms = []
    for x in (images, padded):
        model.zero_grad()
        sum((out * out.detach().cos()).sum() for out in model(x)).backward()
        norms.append(nn.utils.get_total_norm(p.grad for p in model.parameters()))
    assert norms[1] < 10 * norms[0]


# --- names --------------------------------------------------------------------------


def test_layouts():
    weights = official_weights()
    assert layout_of(weights) == 'official'
    converted = convert_state_dict(weights)
    assert layout_of(converted) == 'mmattn'
    assert_close(convert_state_dict(converted), converted)
    dat = {'patch_proj.0.weight': torch.zeros(1), 'stages.0.attns.0.proj_qkv': 0}
    with pytest.raises(ValueError, match='proj_qkv'):
        layout_of(dat)


@pytest.mark.parametrize('depths', [(2, 2, 2), (2, 2, 2, 2, 2)], ids=['three', 'five'])
def test_other_numbers_of_stages_are_refused(depths):
    with pytest.raises(ValueError, match='4 stages'):
        DATPlusPlus(dict(ARCH, depths=depths))
