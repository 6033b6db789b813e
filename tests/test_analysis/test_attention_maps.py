"""Attention kernels: against dense oracles, and against what the modules output."""

import pytest
import timm
import torch
import torch.nn.functional as F
from refusals import refuses
from torch import nn

from mmattn.analysis import attention_kernels, attention_maps
from mmattn.models import IViT, LiSANet, MaiT, ViT
from mmattn.models.layers import NeighborhoodAttention
from tools.benchmark.tolerances import assert_close


def refuse(*args):
    raise AssertionError('compiled')


class Neighborhoods(nn.Module):
    """Two layers of neighborhood attention on patches of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        layers = [NeighborhoodAttention(24, 3, kernel_size=5) for _ in range(2)]
        self.layers = nn.Sequential(*layers)

    def forward(self, image):
        return self.layers(self.patches(image).permute(0, 2, 3, 1))


class Biases(nn.Module):
    """Two layers of softmax attention with a learned bias of the scores."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 16, 16, padding=6)
        self.layers = nn.Sequential(BiasedAttention(), BiasedAttention())

    def forward(self, image):
        return self.layers(self.patches(image).permute(0, 2, 3, 1))


class BiasedAttention(nn.Module):
    """SDPA of 6 x 5 tokens with a bias of each head."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(24, 72)
        self.table = nn.Parameter(torch.zeros(3, 30, 30))
        self.proj = nn.Linear(24, 24)

    def forward(self, x):
        qkv = self.qkv(x).view(1, 30, 3, 3, 8).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(*qkv, attn_mask=self.table)
        return self.proj(out.transpose(1, 2).reshape(x.shape))


PLAIN = dict(embed_dims=(32,), depths=(2,), mlp_ratios=(2,), conv_stages=0, patterns=3)
VIT = dict(embed_dims=24, depth=2, num_heads=3)
WITHOUT_BRANCHES = dict(local_kernel=None, gate=False)
BACKBONES = {
    'lisa': lambda: LiSANet(PLAIN, img_size=96),
    'lisa-1d': lambda: LiSANet(PLAIN, img_size=96, fft_dims=1),
    'biases': Biases,
    'neighborhoods': Neighborhoods,
    'vit': lambda: ViT(VIT, 'mhsa'),
    'vit-interaction': lambda: ViT(VIT, 'mhsa_interaction'),
    'vit-landmarks': lambda: ViT(VIT, 'imhsa', landmarks=2, **WITHOUT_BRANCHES),
    'vit-compiled': lambda: ViT(VIT, 'mhsa', compile=dict(backend=refuse)),
}
IMAGE = (96, 71)
OUTSIDE = (-0.1, 0), (0, -1), (32, 0), (0, 48)
QUERIES = [(0.5, 0.5), (40.0, 70.9), (95.5, 35.0)]


def make(name):
    torch.manual_seed(0)
    backbone = BACKBONES[name]().double().eval()
    for name, parameter in backbone.named_parameters():
        if name.endswith('attn.bias'):  # what the operator adds to the weighed values
            nn.init.zeros_(parameter)
        elif parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.5)  # kernels that are not all alike
    return backbone


@pytest.mark.parametrize('name', BACKBONES)
def test_kernels_times_values_are_the_attentions_output(name):
    backbone = make(name)
    seen = {}
    for layer, module in backbone.named_modules():
        if hasattr(module, 'qkv'):
            after = getattr(module, 'norm', module.proj)
            module.qkv.register_forward_hook(
                lambda _, args, out, layer=layer: seen.update({(layer, 'qkv'): out})
            )
            after.register_forward_pre_hook(
                lambda _, args, layer=layer: seen.update({(layer, 'out'): args[0]})
            )
    image = torch.randn(1, 3, *IMAGE, dtype=torch.float64)
    found = attention_kernels(backbone, image, QUERIES)
    assert [kernels.layer for kernels in found] == [k for k, w in seen if w == 'qkv']
    assert len(found) == 2
    for kernels in found:
        Q, M, H, W = kernels.kernels.shape
        out = seen[kernels.layer, 'out']
        assert (Q, H, W) == (len(QUERIES), *out.shape[1:3])
        v = seen[kernels.layer, 'qkv'][0].view(H, W, 3, M, -1)[:, :, 2]
        weighed = torch.einsum('qmhw,hwmd->qmd', kernels.kernels, v).flatten(1)
        expected = torch.stack([out[0, row, column] for row, column in kernels.cells])
        assert_close(kernels.layer, expected, weighed)


@pytest.mark.parametrize('masking', ['soft', [(0, 2), (1,)]], ids=str)
def test_kernels_of_masked_layers_have_all_heads_in_order(masking):
    """The operator gets some of them at a time."""
    torch.manual_seed(0)
    backbone = MaiT(VIT, masking=masking, img_size=64).double().eval()
    for block in backbone.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.5)
    image = torch.randn(1, 3, *IMAGE, dtype=torch.float64)
    maps = attention_maps(backbone, image)
    found = attention_kernels(backbone, image, QUERIES)
    assert [kernels.layer for kernels in found] == ['blocks.0.attn', 'blocks.1.attn']
    for kernels, whole in zip(found, maps, strict=True):
        assert whole.weights.shape == (3, 31, 31)
        assert kernels.cells == ((0, 0), (2, 4), (5, 2))
        rows = whole.weights[:, [1, 1 + 14, 1 + 27], 1:].transpose(0, 1)
        assert_close('kernels', rows.unflatten(-1, (6, 5)), kernels.kernels)


def test_maps_are_of_softmax_attention_alone(caplog):
    backbone = IViT('nano').eval()
    with pytest.raises(ValueError, match='IViT called no attention'):
        attention_maps(backbone, torch.randn(1, 3, 64, 64))
    assert 'stages.2.blocks.0.attn: its kernels are no softmax' in caplog.text
    with pytest.raises(ValueError, match='ViT called no attention'):
        attention_maps(make('vit-interaction').float(), torch.randn(1, 3, 64, 64))
    assert 'blocks.0.attn: its kernels are no softmax' in caplog.text


@pytest.mark.parametrize('name', ['vit-interaction', 'lisa'])
def test_effective_maps_have_all_kernels(name):
    backbone = make(name)
    image = torch.randn(1, 3, *IMAGE, dtype=torch.float64)
    found = attention_kernels(backbone, image, QUERIES)
    maps = attention_maps(backbone, image, effective=True)
    assert [m.layer for m in maps] == [kernels.layer for kernels in found]
    for kernels, whole in zip(found, maps, strict=True):
        rows = [y * whole.grid[1] + x for y, x in kernels.cells]
        expected = kernels.kernels.flatten(2).transpose(0, 1)
        assert_close('rows', expected, whole.weights[:, rows])


@pytest.mark.parametrize('fused', [True, False], ids=['fused', 'explicit'])
def test_tokens_before_the_grid_are_left_out(fused):
    """A ViT with a class token, through SDPA and through explicit scores."""
    torch.manual_seed(0)
    backbone = timm.create_model(
        'vit_tiny_patch16_224', img_size=(64, 96), depth=2, num_classes=0
    )
    backbone = backbone.double().eval()
    seen = []
    for block in backbone.blocks:
        block.attn.fused_attn = fused
        nn.init.normal_(block.attn.qkv.weight, std=0.5)
        block.attn.qkv.register_forward_hook(lambda _, args, out: seen.append(out))
    image = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    found = attention_kernels(backbone, image, [(20, 90)])
    assert [kernels.layer for kernels in found] == ['blocks.0.attn', 'blocks.1.attn']
    for kernels, qkv in zip(found, seen, strict=True):
        assert kernels.cells == ((1, 5),)
        q, k, _ = qkv[0].view(25, 3, 3, 64).permute(1, 2, 0, 3)
        row = (q[:, 1 + 6 + 5, None] @ k.mT / 8).softmax(-1)[:, 0]  # (3, 25)
        assert_close('kernels', row[None, :, 1:].view(1, 3, 4, 6), kernels.kernels)


@pytest.mark.parametrize('side', [64, 65])
def test_a_querys_cell_holds_its_pixel(side):
    """Each pixel has a cell, in order, and cells have pixels in like number."""
    torch.manual_seed(0)
    backbone = LiSANet(PLAIN, img_size=64).eval()
    pixels = [(y + 0.5, 0.5) for y in range(side)]
    kernels = attention_kernels(backbone, torch.randn(1, 3, side, 64), pixels)[0]
    rows = [row for row, _ in kernels.cells]
    counts = torch.tensor(rows).bincount()
    assert rows == sorted(rows)
    assert len(counts) == -(-side // 16) and counts.max() - counts.min() <= 1


class Attention(nn.Module):
    """SDPA of tokens (B, N, C) with keys and values of every `stride`-th token."""

    stride = 1

    def forward(self, x):
        x = x.unsqueeze(1)
        k = x[:, :, :: self.stride]
        return F.scaled_dot_product_attention(x, k, k, scale=0.3).squeeze(1)


class ScoresAttention(nn.Module):
    """The same, with a softmax that is a module, whose input is N x N."""

    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        x = x.unsqueeze(1)
        return (self.softmax(0.3 * x @ x.transpose(-2, -1)) @ x).squeeze(1)


class Tokens(nn.Module):
    """Cuts an image into windows of 16 tokens of 4 x 4 pixels, then `blocks`."""

    def __init__(self, *blocks, windows):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.windows = windows

    def forward(self, image):
        x = F.unfold(image, 4, stride=4).mT  # (1, N, 48)
        return self.blocks(x.view(-1, 16, 48) if self.windows else x)


@pytest.mark.parametrize('kind', [Attention, ScoresAttention])
def test_scores_have_the_scale_and_grid_of_their_layer(kind):
    torch.manual_seed(0)
    image = torch.randn(1, 3, 16, 32, dtype=torch.float64)
    (found,) = attention_kernels(Tokens(kind(), windows=False), image, [(9, 25)])
    assert (found.layer, found.cells) == ('blocks.0', ((2, 6),))
    x = F.unfold(image, 4, stride=4)[0].T  # (4 * 8, 48)
    row = (0.3 * x[2 * 8 + 6] @ x.T).softmax(0)
    assert_close('kernels', row.view(1, 1, 4, 8), found.kernels)


def test_what_is_not_one_grid_is_refused(caplog):
    image = torch.randn(1, 3, 32, 32)
    with pytest.raises(ValueError, match='Tokens called no attention .* Attention, Se'):
        attention_kernels(Tokens(Attention(), windows=True), image, [(0, 0)])
    assert 'blocks.0: 4 x 16 tokens are no grid of the image' in caplog.text
    backbone = Tokens(Attention(), Attention(), windows=False)
    backbone.blocks[1].stride = 2
    found = attention_kernels(backbone, image, [(0, 0)])
    assert [kernels.layer for kernels in found] == ['blocks.0']
    assert 'blocks.1: queries and keys of (1, 1, 64, 48) and (1, 1, 32' in caplog.text


test_a_backbone_without_readable_attention_is_refused = refuses(
    lambda backbone: attention_kernels(backbone, torch.ones(1, 3, 32, 32), [(0, 0)]),
    (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
        'Sequential called .* its modules are Conv2d, ReLU, Sequential',
    ),
    (
        LiSANet(PLAIN, img_size=32, backend='reference'),
        "LiSANet called .* except with backend='reference'; its modules .* LiSAB",
    ),
)


test_queries_and_images_that_are_refused = refuses(
    lambda image, *query: attention_kernels(ViT(VIT, 'mhsa'), image, [(1, 1), query]),
    *(((torch.ones(1, 3, 32, 48), *q), 'outside the 32x48') for q in OUTSIDE),
    ((torch.ones(2, 3, 32, 48), 0, 0), 'image must have shape'),
)


def test_a_backbone_is_left_as_it_was():
    backbone = ViT(VIT, 'mhsa')
    image = torch.randn(1, 3, 32, 32)
    attention_kernels(backbone, image, [(0, 0)])
    with pytest.raises(ValueError, match=r'shape \(B, 3, H, W\)'):
        attention_kernels(backbone, torch.randn(1, 4, 32, 32), [(0, 0)])
    assert not any(
        module._forward_hooks or module._forward_pre_hooks
        for module in backbone.modules()
    )
    backbone(image)[0].sum().backward()
