"""Points of deformable attention: where a layer samples, and how much is attended."""

import importlib

import pytest
import torch
from torch.testing import assert_close

from mmattn.analysis import sampling_points
from mmattn.models import DAT, DATPlusPlus, ViT
from mmattn.models.layers import DeformableAttention
from mmattn.models.layers import deformable_attention as layer_module
from mmattn.ops import deformable_attention

SIZE = 64, 96
BACKBONES = {  # with the layers that there are, and the sides of their maps and keys
    'dat': (
        DAT,
        dict(depths=(1, 1, 2, 2), num_heads=(1, 1, 2, 4), num_groups=(0, 0, 1, 2)),
        {
            'stages.2.blocks.1.attn': ((4, 6), (4, 6)),
            'stages.3.blocks.1.attn': ((2, 3), (2, 3)),
        },
    ),
    'dat++': (
        DATPlusPlus,
        dict(depths=(2, 1, 1, 1), num_heads=(2, 1, 2, 4), num_groups=(2, 1, 1, 2)),
        {
            'stages.0.blocks.1.attn': ((16, 24), (2, 3)),
            'stages.3.blocks.0.attn': ((2, 3), (2, 3)),
        },
    ),
}
QUERIES = [None, (10.0, 70.0)]

every_backbone = pytest.mark.parametrize('name', BACKBONES)


def build(name, **kwargs):
    """With offsets of a few pixels, and tables and projections that matter."""
    cls, arch, _ = BACKBONES[name]
    arch = dict(arch, embed_dims=(8, 8, 16, 16))
    torch.manual_seed(0)
    model = cls(arch, img_size=64, **kwargs).double().eval()
    for layer in layers(model):
        torch.nn.init.normal_(layer.conv_offset[-1].weight, std=0.5)
        torch.nn.init.normal_(layer.rpe_table)
        for proj in (layer.proj_q, layer.proj_k):
            torch.nn.init.normal_(proj.weight)
    return model


def layers(model):
    return [m for m in model.modules() if isinstance(m, DeformableAttention)]


def image():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 3, *SIZE, generator=generator, dtype=torch.float64)


def hats(place, side):
    """Return each pixel's weight in a bilinear sample of one axis, shape (side,)."""
    return (1 - (place - torch.arange(side)).abs()).clamp(min=0)


@every_backbone
def test_points_are_where_the_layer_samples(name):
    model, sampled = build(name), []
    for layer in layers(model):
        layer.register_forward_pre_hook(lambda _, args: sampled.append([args[0][0]]))
        layer.proj_v.register_forward_pre_hook(
            lambda _, args: sampled[-1].append(args[0][0])
        )
    found = sampling_points(model, image())
    sides = BACKBONES[name][2]
    assert [points.layer for points in found] == list(sides)
    for points, (x, samples) in zip(found, sampled, strict=True):
        (H, W), keys = sides[points.layer]
        assert x.shape[:2] == (H, W)
        assert len(points.references) == keys[0] * keys[1] == len(samples)
        assert (points.points - points.references).abs().mean() > 1
        stride = SIZE[0] / H
        groups = (each.chunk(len(points.points), dim=-1) for each in (x, samples))
        for places, channels, expected in zip(points.points, *groups, strict=True):
            pixels = zip(places / stride - 0.5, expected, strict=True)
            for (row, column), sample in pixels:
                weights = hats(row, H)[:, None] * hats(column, W)
                assert_close(torch.einsum('hw,hwc->c', weights, channels), sample)


@pytest.mark.parametrize('query', QUERIES, ids=['all', 'one'])
@every_backbone
def test_weights_are_the_operators_attention(name, query, monkeypatch):
    """The attention is the gradient of an output with respect to the values."""
    model, calls = build(name), []

    def keep(*args, **kwargs):
        calls.append((args, kwargs))
        return deformable_attention(*args, **kwargs)

    monkeypatch.setattr(layer_module, 'deformable_attention', keep)
    found = sampling_points(model, image(), query)
    for points, ((q, k, v, grid, *others), kwargs) in zip(found, calls, strict=True):
        (H, W), _ = BACKBONES[name][2][points.layer]
        stride, rows = SIZE[0] / H, slice(None)
        if query is None:
            assert points.query is None
        else:
            row, column = (int(place // stride) for place in query)
            assert points.query == ((row + 0.5) * stride, (column + 0.5) * stride)
            rows = [row * W + column]
        v = v.detach().requires_grad_()
        kwargs = kwargs | dict(backend='reference')
        out = deformable_attention(q, k, v, grid, *others, **kwargs)[0, rows, :, 0]
        (attention,) = torch.autograd.grad(out.sum(), v)  # (1, K, M, D)
        attention = attention[0, :, :, 0].T / len(out)
        heads = attention.unflatten(0, (len(points.points), -1))
        assert_close(points.weights, heads.mean(1))
        assert_close(points.weights.sum(1), torch.ones(len(heads)).double())
        assert points.weights.std() > 0.01


def test_scores_of_some_queries_at_a_time(monkeypatch):
    model = build('dat++')
    expected = [points.weights for points in sampling_points(model, image())]
    module = importlib.import_module('mmattn.analysis.sampling_points')
    monkeypatch.setattr(module, 'MAX_SCORES', 100)
    assert_close([p.weights for p in sampling_points(model, image())], expected)


def test_the_grid_before_the_offsets():
    """The map has 2 x 3 pixels, whose outer centers are 32 pixels apart."""
    model = build('dat')
    for layer in layers(model):
        torch.nn.init.zeros_(layer.conv_offset[-1].weight)
    *_, points = sampling_points(model, image())
    rows, columns = [24, 40], [80 / 3, 48, 208 / 3]
    expected = [[row, column] for row in rows for column in columns]
    assert_close(points.references, torch.tensor(expected).double())
    assert_close(points.points, points.references.expand(2, -1, -1))


def test_what_is_wrong_is_said():
    model = build('dat')
    with pytest.raises(ValueError, match='1, 3, H, W'):
        sampling_points(model, image().repeat(2, 1, 1, 1))
    with pytest.raises(ValueError, match=r'\(64, 5\) is outside the 64x96 image'):
        sampling_points(model, image(), (64, 5))
    vit = ViT(dict(embed_dims=24, depth=1, num_heads=3), 'mhsa')
    with pytest.raises(ValueError, match='ViT has no DeformableAttention'):
        sampling_points(vit, image().float())
    assert not any(layer._forward_hooks for layer in layers(model))
