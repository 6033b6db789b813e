"""DAT: the whole network from official weights, and how these are converted."""

import pytest
import torch
import torch.nn.functional as F
from golden import hashed_parameter
from resampling import resized
from torch.testing import assert_close

from mmattn.models import DAT
from mmattn.models.backbones.dat import convert_state_dict, layout_of
from mmattn.models.layers import (
    DeformableAttention,
    WindowAttention,
    undecayed_names,
)

ARCH = dict(
    embed_dims=(8, 16, 24, 32),
    depths=(2, 2, 4, 2),
    num_heads=(1, 2, 6, 4),
    num_groups=(0, 0, 3, 2),
)
KERNELS = 9, 7, 5, 3
EXACT = dict(rtol=1e-12, atol=1e-12)


def official_shapes(arch, window=7, sides=(56, 28, 14, 7), num_classes=10):
    """Names and shapes of an official checkpoint, buffers included."""
    dims = arch['embed_dims']
    shapes = {}

    def affine(name, *shape):
        shapes[f'{name}.weight'] = shape
        shapes[f'{name}.bias'] = shape[:1]

    affine('patch_proj.0', dims[0], 3, 4, 4)
    affine('patch_proj.1.norm', dims[0])
    for s, (C, M, G) in enumerate(
        zip(dims, arch['num_heads'], arch['num_groups'], strict=True)
    ):
        for d in range(arch['depths'][s]):
            attn, mlp = f'stages.{s}.attns.{d}', f'stages.{s}.mlps.{d}.chunk'
            affine(f'stages.{s}.layer_norms.{2 * d}.norm', C)
            affine(f'stages.{s}.layer_norms.{2 * d + 1}.norm', C)
            affine(f'{mlp}.linear1', 4 * C, C)
            affine(f'{mlp}.linear2', C, 4 * C)
            if d % 2 and G:
                k = KERNELS[s]
                affine(f'{attn}.conv_offset.0', C // G, 1, k, k)
                affine(f'{attn}.conv_offset.1.norm', C // G)
                shapes[f'{attn}.conv_offset.3.weight'] = (2, C // G, 1, 1)
                for name in ('q', 'k', 'v', 'out'):
                    affine(f'{attn}.proj_{name}', C, C, 1, 1)
                shapes[f'{attn}.rpe_table'] = (M, *(2 * sides[s] - 1,) * 2)
                continue
            affine(f'{attn}.proj_qkv', 3 * C, C)
            affine(f'{attn}.proj_out', C, C)
            table = f'{attn}.relative_position_bias_table'
            shapes[table] = ((2 * window - 1) ** 2, M)
            shapes[f'{attn}.relative_position_index'] = (window**2, window**2)
            if d % 2:
                count = (sides[s] // window) ** 2
                shapes[f'{attn}.attn_mask'] = (count, window**2, window**2)
    for s in range(3):
        shapes[f'down_projs.{s}.0.weight'] = (dims[s + 1], dims[s], 2, 2)
        affine(f'down_projs.{s}.1.norm', dims[s + 1])
    affine('cls_norm.norm', dims[3])
    affine('cls_head', num_classes, dims[3])
    return shapes


def official_weights(arch=ARCH, **kwargs):
    return {
        name: hashed_parameter(name, shape)
        for name, shape in official_shapes(arch, **kwargs).items()
    }


class Official:
    """The forward of an official state dict, channels first, without its buffers."""

    def __init__(self, weights, arch, window=7):
        self.weights, self.arch, self.window = weights, arch, window

    def get(self, name):
        return self.weights.get(f'{name}.weight'), self.weights.get(f'{name}.bias')

    def norm(self, name, x):
        x = F.layer_norm(x.movedim(1, -1), x.shape[1:2], *self.get(f'{name}.norm'))
        return x.movedim(-1, 1)

    def linear(self, name, x):
        weight, bias = self.get(name)
        return F.conv2d(x, weight.view(*weight.shape[:2], 1, 1), bias)

    def windows(self, name, x, M, shift):
        (B, C, H, W), w = x.shape, self.window
        x = x.roll((-shift, -shift), (2, 3))
        x = self.linear(f'{name}.proj_qkv', x)
        x = F.unfold(x, w, stride=w).view(B, 3, M, C // M, w * w, -1)
        q, k, v = x.permute(1, 0, 5, 2, 4, 3)  # (B, windows, M, N, D)
        y = torch.arange(w).repeat_interleave(w)
        i, j = y[:, None] - y + w - 1, y.view(w, w).t().reshape(-1)
        j = j[:, None] - j + w - 1
        table = self.weights[f'{name}.relative_position_bias_table']
        bias = table[i * (2 * w - 1) + j].permute(2, 0, 1)
        scores = q @ k.mT * (C // M) ** -0.5 + bias
        if shift:
            part = torch.zeros(1, 1, H, W).double()
            for edge in (w, shift):
                part[:, :, -edge:] += 1
                part[..., -edge:] += 3
            part = F.unfold(part, w, stride=w)[0].t()  # (windows, N)
            scores = scores - 100.0 * (part[:, None] != part[..., None])[None, :, None]
        out = (scores.softmax(-1) @ v).permute(0, 2, 4, 3, 1)  # (B, M, D, N, windows)
        out = F.fold(out.reshape(B, C * w * w, -1), (H, W), w, stride=w)
        return self.linear(f'{name}.proj_out', out).roll((shift, shift), (2, 3))

    def deformed(self, name, x, M, G):
        B, C, H, W = x.shape
        q = self.linear(f'{name}.proj_q', x)
        weight, bias = self.get(f'{name}.conv_offset.0')
        h = q.reshape(B * G, C // G, H, W)
        h = F.conv2d(h, weight, bias, padding=weight.shape[-1] // 2, groups=C // G)
        h = F.gelu(self.norm(f'{name}.conv_offset.1', h))
        offset = self.linear(f'{name}.conv_offset.3', h).tanh().movedim(1, -1)
        centers = [(torch.arange(s).double() + 0.5) / s * 2 - 1 for s in (H, W)]
        reference = torch.stack(torch.meshgrid(*centers, indexing='ij'), -1)
        pos = reference + offset * 2 / torch.tensor([H, W])
        sampled = F.grid_sample(
            x.reshape(B * G, C // G, H, W), pos.flip(-1), align_corners=True
        ).view(B, C, H, W)
        k, v = (self.linear(f'{name}.proj_{n}', sampled) for n in 'kv')
        q, k, v = (t.reshape(B, M, C // M, H * W).mT for t in (q, k, v))
        displacement = reference.view(1, -1, 1, 2) - pos.view(B * G, 1, -1, 2)
        table = self.weights[f'{name}.rpe_table'].unflatten(0, (G, M // G))
        bias = F.grid_sample(
            table.repeat(B, 1, 1, 1), displacement.flip(-1) / 2, align_corners=True
        ).view(B, M, H * W, H * W)
        out = (q @ k.mT * (C // M) ** -0.5 + bias).softmax(-1) @ v
        return self.linear(f'{name}.proj_out', out.mT.reshape(B, C, H, W))

    def __call__(self, x):
        arch = self.arch
        x = F.conv2d(x, *self.get('patch_proj.0'), stride=4)
        x = self.norm('patch_proj.1', x)
        for s in range(4):
            if s:
                x = F.conv2d(x, self.get(f'down_projs.{s - 1}.0')[0], stride=2)
                x = self.norm(f'down_projs.{s - 1}.1', x)
            M, G = arch['num_heads'][s], arch['num_groups'][s]
            for d in range(arch['depths'][s]):
                name = f'stages.{s}.attns.{d}'
                h = self.norm(f'stages.{s}.layer_norms.{2 * d}', x)
                if d % 2 and G:
                    x = x + self.deformed(name, h, M, G)
                else:
                    shift = (self.window + 1) // 2 if d % 2 else 0
                    x = x + self.windows(name, h, M, shift)
                h = self.norm(f'stages.{s}.layer_norms.{2 * d + 1}', x)
                h = F.gelu(self.linear(f'stages.{s}.mlps.{d}.chunk.linear1', h))
                x = x + self.linear(f'stages.{s}.mlps.{d}.chunk.linear2', h)
        return self.norm('cls_norm', x)


def test_network_is_the_official_one():
    weights = official_weights()
    model = DAT(ARCH, out_indices=3).double()
    result = model.load_state_dict(weights, strict=False)
    assert not result.missing_keys
    assert result.unexpected_keys == ['cls_head.weight', 'cls_head.bias']
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        assert_close(model(x)[0], Official(weights, ARCH)(x), **EXACT)


def test_conversion_gives_the_networks_names_and_shapes():
    weights = official_weights()
    converted = convert_state_dict(weights)
    own = DAT(ARCH, out_indices=3).state_dict()
    shapes = {name: value.shape for name, value in converted.items()}
    assert shapes.pop('cls_head.weight') == (10, 32) and shapes.pop('cls_head.bias')
    assert shapes == {name: value.shape for name, value in own.items()}
    elements = sum(v.numel() for n, v in weights.items() if 'index' not in n)
    masks = sum(v.numel() for n, v in weights.items() if 'mask' in n)
    assert sum(v.numel() for v in converted.values()) == elements - masks
    again = convert_state_dict(converted)
    assert list(again) == list(converted)
    assert all(again[name] is converted[name] for name in again)


def test_official_weights_of_a_detector_load():
    """With a prefix, and without the classifier's parts."""
    weights = official_weights()
    model = torch.nn.ModuleDict({'backbone': DAT(ARCH, out_norm=False)})
    result = model.load_state_dict(
        {f'backbone.{n}': v for n, v in weights.items() if not n.startswith('cls_')}
    )
    assert not result.missing_keys and not result.unexpected_keys
    stem = model['backbone'].stem.proj.weight
    assert_close(stem, weights['patch_proj.0.weight'].float(), rtol=0, atol=0)


def test_layouts():
    model = DAT(ARCH)
    assert layout_of(official_weights()) == 'official'
    assert layout_of(model.state_dict()) == 'mmattn'
    with pytest.raises(ValueError, match=r"stem\.proj\.weight.*'conv1.weight'"):
        layout_of({'conv1.weight': torch.zeros(1)})
    plus_plus = {'patch_proj.0.weight', 'stages.0.mlps.0.linear1.0.weight'}
    with pytest.raises(ValueError, match='not the weights of a DAT'):
        layout_of(dict.fromkeys(plus_plus, torch.zeros(1)))


def test_weights_of_other_sizes_get_their_tables_resized():
    """As the official base network at 384 pixels starts from the one at 224."""
    source = DAT(ARCH)
    model = DAT(ARCH, img_size=(384, 448), window_size=12)
    model.load_state_dict(source.state_dict())
    deformable, window = model.stages[2].blocks[1].attn, model.stages[2].blocks[0].attn
    assert deformable.rpe_table.shape == (6, 2 * 24 - 1, 2 * 28 - 1)
    assert window.relative_position_bias_table.shape == (23 * 23, 6)
    source_table = source.stages[2].blocks[1].attn.rpe_table
    expected = resized(source_table, (47, 55))
    assert_close(deformable.rpe_table.double(), expected, rtol=0, atol=1e-6)


def test_blocks_of_each_stage():
    with torch.device('meta'):
        model = DAT('tiny')
    kinds = [
        [
            f'D{block.attn.num_groups}'
            if isinstance(block.attn, DeformableAttention)
            else f'L{block.attn.window_size}'
            if block.attn.shift == 0
            else f'S{block.attn.shift}'
            for block in layer.blocks
        ]
        for layer in model.stages
    ]
    assert kinds == [['L7', 'S4'], ['L7', 'S4'], ['L7', 'D3'] * 3, ['L7', 'D6']]
    for layer, kernel in ((model.stages[2], 5), (model.stages[3], 3)):
        attn = layer.blocks[1].attn
        assert attn.version == 1
        assert attn.conv_offset[0].kernel_size == (kernel, kernel)


def test_an_odd_stage_ends_with_its_second_kind():
    with torch.device('meta'):
        model = DAT(dict(ARCH, depths=(1, 3, 1, 3)))
    kinds = [
        [isinstance(b.attn, WindowAttention) and not b.attn.shift for b in layer.blocks]
        for layer in model.stages
    ]
    assert kinds == [[False], [False, True, False]] * 2


def test_tables_do_not_decay():
    """As in the official recipe, which decays the offset networks."""
    with torch.device('meta'):
        model = DAT('nano')
    tables = 'rpe_table', 'relative_position_bias_table'
    named = {n for n, _ in model.named_parameters() if n.endswith(tables)}
    assert len(named) == 12
    assert undecayed_names(model) == named


def test_backend_is_the_operators():
    model = DAT(ARCH, backend='none')
    with pytest.raises(ValueError, match="'none'"):
        model(torch.zeros(1, 3, 32, 32))
