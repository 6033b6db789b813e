"""Points of multi-scale attention: the layer's output is the sum of what is there."""

import pytest
import small_deformable_detr as small
import torch
from torch.testing import assert_close

from mmattn.analysis import multi_scale_points
from mmattn.models import MSDeformAttnNeck
from mmattn.models.layers import MSDeformAttention

HEIGHT, WIDTH = small.IMAGES


def watched(model, run):
    """Return arguments and output of each deformable attention of a model."""
    calls = []
    layers = [m for m in model.modules() if isinstance(m, MSDeformAttention)]
    for layer in layers:
        layer.register_forward_hook(lambda *call: calls.append(call))
    run()
    return calls


def hats(place, side):
    """Return each pixel's weight in a bilinear sample of one axis, shape (side,)."""
    return (1 - (place - torch.arange(side)).abs()).clamp(min=0)


def attended(layer, args, points):
    """Return the output of one query: what is at the points, by their weights."""
    _, value, shapes, _, padding = args
    value = layer.value_proj(value[0])
    if padding is not None:
        value = value.masked_fill(padding[0, :, None], 0)
    value = value.unflatten(-1, (layer.num_heads, -1))  # (S, M, D)
    out = torch.zeros_like(value[0])
    maps = value.split([height * width for height, width in shapes])
    for level, ((H, W), pixels) in enumerate(zip(shapes, maps, strict=True)):
        for head in range(layer.num_heads):
            for place, weight in zip(
                points.points[head, level], points.weights[head, level], strict=True
            ):
                row, column = place.double() * torch.tensor([H / HEIGHT, W / WIDTH])
                near = hats(row - 0.5, H)[:, None] * hats(column - 0.5, W)
                out[head] += weight * (near.flatten() @ pixels[:, head])
    return layer.output_proj(out.flatten())


@pytest.fixture
def detector():
    """A detector, and a function that runs it on an image with padding."""
    model = small.detector('refine').double().eval()
    image, sample = small.images()[1:], small.samples()[1:]
    return model, lambda: model(image, sample, mode='tensor')


@torch.no_grad()
def test_the_points_give_the_output_of_the_query(detector):
    model, run = detector
    place = (50.3, 40.9)
    found = multi_scale_points(model, run, small.IMAGES, place)
    calls = watched(model, run)
    kinds = ['encoder', 'encoder', 'decoder', 'decoder']
    assert [points.layer.partition('.')[0] for points in found] == kinds
    for points, (layer, args, out) in zip(found, calls, strict=True):
        query, _, shapes, references, _ = args
        assert points.sizes == ((12, 16), (6, 8), (3, 4), (2, 2))
        centers = references[0, :, 0, :2].flip(-1) * torch.tensor(small.IMAGES)
        if points.layer.startswith('encoder'):  # pixels of 8 x 8
            index = 6 * 16 + 5
            assert_close(centers[index], torch.tensor([52.0, 44.0]).double())
        else:
            distances = [torch.dist(x, torch.tensor(place)) for x in centers]
            index = distances.index(min(distances))
        assert points.query == pytest.approx(centers[index].tolist())
        M, L, P = layer.num_heads, layer.num_levels, layer.num_points
        assert points.points.shape == (M, L, P, 2)
        assert_close(points.weights.sum((1, 2)), torch.ones(M))
        assert points.weights.std() > 0.01
        given = attended(layer, args, points)
        assert_close(given, out[0, index], rtol=1e-4, atol=1e-4)


def test_a_neck_whose_finest_map_is_the_last():
    encoder = dict(num_layers=1, num_heads=4, num_points=2, feedforward_channels=16)
    neck = MSDeformAttnNeck([8, 16, 32], 32, encoder=encoder, num_encoder_levels=3)
    neck = small.with_random_weights(neck).eval()
    maps = [torch.randn(1, s, 96 // s, 128 // s) for s in (8, 16, 32)]
    place = (50.0, 100.0)
    run = lambda: neck(maps)  # noqa: E731
    (points,) = multi_scale_points(neck, run, small.IMAGES, place)
    assert points.sizes == ((3, 4), (6, 8), (12, 16))
    assert points.query == pytest.approx((52.0, 100.0))
    ((layer, args, out),) = watched(neck, run)
    index = 3 * 4 + 6 * 8 + 6 * 16 + 12
    with torch.no_grad():
        given = attended(layer.double(), [args[0], args[1].double(), *args[2:]], points)
    assert_close(given.float(), out[0, index], rtol=1e-4, atol=1e-4)


def test_what_is_wrong_is_named(detector):
    model, run = detector
    with pytest.raises(ValueError, match=r'\(96, 5\) is outside the 96x128 image'):
        multi_scale_points(model, run, small.IMAGES, (96, 5))
    with pytest.raises(ValueError, match='ResNet has no MSDeformAttention'):
        multi_scale_points(model.backbone, run, small.IMAGES, (5, 5))
    assert not any(layer._forward_hooks for layer in model.modules())
