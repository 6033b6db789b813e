"""Attention locality: against loops, in known cases, and in whole backbones."""

import pytest
import torch
import torch.nn.functional as F
from largest_tensor import LargestTensor
from torch import nn

from mmattn.analysis import (
    attention_kernels,
    attention_locality,
    attention_maps,
    locality,
    locality_by_layer,
    locality_score,
)
from mmattn.models.layers import MaskedAttention
from mmattn.ops.masked_attention import attention_scores, neighborhood_mask, spread_bias
from tools.benchmark.tolerances import assert_close


def score_by_loops(weights, grid, kernel_size):
    """Compute equation 3 for one matrix, patch by patch."""
    H, W = grid
    num_special = len(weights) - H * W
    total = 0.0
    for y in range(H):
        for x in range(W):
            for v in range(H):
                for u in range(W):
                    if max(abs(v - y), abs(u - x)) <= kernel_size // 2:
                        row, column = num_special + y * W + x, num_special + v * W + u
                        total += weights[row, column].item()
    return total / (H * W)


@pytest.mark.parametrize(
    'grid, kernel_size, num_special', [((4, 6), 3, 1), ((1, 5), 3, 0), ((7, 3), 5, 2)]
)
def test_score_is_that_of_loops(grid, num_special, kernel_size):
    N = num_special + grid[0] * grid[1]
    weights = torch.randn(2, 3, N, N, dtype=torch.float64).mul(3).softmax(-1)
    scores = locality_score(weights, grid, kernel_size)
    expected = [[score_by_loops(w, grid, kernel_size) for w in b] for b in weights]
    assert_close('score', torch.tensor(expected, dtype=torch.float64), scores)
    assert (scores > 0).all() and (scores < 1).all()


class Biased(MaskedAttention):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        R, masked = self.kernel_size, len(self.masked_heads)
        self.bias = nn.Parameter(torch.randn(masked, R, R))
        self.global_bias = nn.Parameter(torch.randn(self.num_heads - masked, 25, 25))

    def biases(self, grid):
        return self.bias, self.global_bias


class Tokens(nn.Module):
    """Class token and patches of 5 x 5 pixels, a grid that is no usual stride's."""

    def __init__(self, *layers, num_special=1):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.special = nn.Parameter(torch.randn(1, num_special, 75))

    def forward(self, image):
        x = F.unfold(image, 5, stride=5).mT
        x = torch.cat([self.special.expand(len(x), -1, -1), x], dim=1)
        for layer in self.layers:
            x = x + layer(x, (image.shape[-2] // 5, image.shape[-1] // 5))
        return x


def make(*layers, **kwargs):
    torch.manual_seed(0)
    backbone = Tokens(*(make_layer() for make_layer in layers), **kwargs).double()
    for layer in backbone.layers:
        nn.init.normal_(layer.qkv.weight, std=0.2)
        if layer.alpha_logit is not None:
            nn.init.normal_(layer.alpha_logit)
    return backbone.eval()


def dense_weights(layer, x, grid):
    """(M, N, N) by the operator's definition; x has shape (1, N, C)."""
    q, k, v = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).unbind(2)
    masked = torch.tensor([h in layer.masked_heads for h in range(layer.num_heads)])
    near = neighborhood_mask(grid, layer.kernel_size, layer.num_special)
    mask = near | ~masked[:, None, None]
    bias = alpha = None
    if isinstance(layer, Biased):
        bias = torch.zeros(len(masked), *near.shape, dtype=x.dtype)
        bias[masked] = spread_bias(layer.bias, grid, layer.num_special)
        bias[~masked] = layer.global_bias
    if layer.alpha is not None:
        alpha = torch.ones(len(masked), dtype=x.dtype)
        alpha[masked] = layer.alpha
    scores, _ = attention_scores(q, k, v, mask, bias, alpha, layer.mask_fill)
    return scores.softmax(-1)[0]


LAYERS = {
    'hard': dict(masked_heads=2),
    'global': dict(masked_heads=0),
    'heads-apart': dict(masked_heads=(1, 3)),
    'soft': dict(masked_heads=3, soft=True),
    'neg_inf': dict(masked_heads=2, mask_fill='neg_inf'),
    'bias': dict(masked_heads=(0, 2), kernel_size=3, num_special=0, kind=Biased),
}


@pytest.mark.parametrize(
    'name, backend',
    [*((name, None) for name in LAYERS), ('hard', 'reference'), ('soft', 'reference')],
)
def test_maps_are_the_operators_definition(name, backend):
    options = dict(num_special=1, kind=MaskedAttention, backend=backend) | LAYERS[name]
    kind = options.pop('kind')
    backbone = make(
        *[lambda: kind(75, 5, **options)] * 2, num_special=options['num_special']
    )
    inputs = []
    for layer in backbone.layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    image = torch.randn(1, 3, 25, 25, dtype=torch.float64)
    maps = attention_maps(backbone, image)
    assert [found.layer for found in maps] == ['layers.0', 'layers.1']
    for found, layer, x in zip(maps, backbone.layers, inputs, strict=True):
        assert (found.grid, found.num_special) == ((5, 5), options['num_special'])
        assert_close('weights', dense_weights(layer, x, (5, 5)), found.weights)
    if backend is None:
        kernels = attention_kernels(backbone, image, [(2, 23), (12, 7)])
        for found, whole in zip(kernels, maps, strict=True):
            special = whole.num_special
            rows = whole.weights[:, [special + 4, special + 11], special:]
            assert_close('rows', rows, found.kernels.flatten(2).transpose(0, 1))


def test_layers_have_names_and_nan_for_heads_that_they_lack():
    backbone = make(
        lambda: MaskedAttention(75, 3, 1, num_special=1),
        lambda: MaskedAttention(75, 5, 5, num_special=1),
    )
    images = torch.randn(2, 3, 20, 30, dtype=torch.float64)
    scores = attention_locality(backbone, images)
    assert scores.isnan().tolist() == [[False] * 3 + [True] * 2, [False] * 5]
    named = locality_by_layer(backbone, images)
    assert [name for name, _ in named] == ['layers.0', 'layers.1']
    assert_close('named', scores[0, :3], named[0][1])


def test_neighbors_are_those_of_the_models_masks():
    backbone = make(lambda: MaskedAttention(75, 3, 1, num_special=1, kernel_size=5))
    images = torch.randn(2, 3, 25, 30, dtype=torch.float64)
    scores = attention_locality(backbone, images)
    assert torch.equal(scores, attention_locality(backbone, images, kernel_size=5))
    assert (scores > attention_locality(backbone, images, kernel_size=3)).all()


def test_score_of_a_large_map_needs_no_matrix(monkeypatch):
    monkeypatch.setattr(locality, 'CHUNK', 2**20)
    backbone = Tokens(MaskedAttention(75, 3, 2, num_special=1)).eval()
    with LargestTensor() as largest:
        scores = attention_locality(backbone, torch.randn(1, 3, 320, 325))
    assert scores.numpy() == pytest.approx(9 / 4161, rel=0.1)
    assert largest.numel <= 2**21 < 4161**2 / 8


def test_errors():
    backbone = Tokens(MaskedAttention(75, 3, 1, num_special=1))
    with pytest.raises(ValueError, match='most 4096 tokens, got 4161 on a grid'):
        attention_maps(backbone, torch.randn(1, 3, 320, 325))
    with pytest.raises(ValueError, match='at least one image'):
        attention_locality(backbone, [])
    for kernel_size in (2, -3):
        with pytest.raises(ValueError, match=f'must be odd, got {kernel_size}'):
            locality_score(torch.zeros(16, 16), (4, 4), kernel_size)
    for shape in ((16,), (8, 16), (15, 15)):
        with pytest.raises(ValueError, match='no attention of a grid of'):
            locality_score(torch.zeros(shape), (4, 4))
