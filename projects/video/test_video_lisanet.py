"""VideoLiSANet: inflation, the attention over space and time, and any clip."""

from itertools import product
from operator import call

import pytest
from refusals import refuses

pytest.importorskip('mmengine')

import torch
from torch import nn

from mmattn.models import LiSANet
from mmattn.models.layers import DepthwiseConv, StructureAwareAttention
from projects.video.video_lisanet import VIDEO_MIXERS, ClipConv, VideoLiSANet
from tools.benchmark.tolerances import assert_close

ARCH = dict(
    embed_dims=(16, 32, 48),
    depths=(1, 1, 2),
    mlp_ratios=(2, 2, 2),
    conv_stages=1,
    patterns=3,
)
SIDE = 32


def randomized(net, dtype=torch.float64):
    """Give all parts weights that matter, biases and norms included."""
    generator = torch.Generator().manual_seed(0)
    for param in net.parameters():
        nn.init.normal_(param, std=0.1, generator=generator)
    return net.to(dtype).eval()


def draw(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def image_net():
    return randomized(LiSANet(ARCH, img_size=SIDE))


def video_net(**kwargs):
    return VideoLiSANet(ARCH, img_size=SIDE, num_frames=6, **kwargs).double().eval()


@pytest.mark.parametrize('inflation', ['average', 'center'])
def test_still_clip_gives_the_maps_of_the_image(inflation):
    image, net = image_net(), video_net(inflation=inflation)
    net.load_state_dict(image.state_dict())
    x = draw(2, 3, SIDE, SIDE)
    maps = net(x.unsqueeze(2).expand(-1, -1, 6, -1, -1))
    for expected, found in zip(image(x), maps, strict=True):
        assert found.shape[2] == 3
        assert_close('map', expected.unsqueeze(2).expand_as(found), found)


def test_center_inflation_is_the_image_network_on_every_second_frame():
    image, net = image_net(), video_net(inflation='center')
    net.load_state_dict(image.state_dict())
    clip = draw(1, 3, 6, SIDE, SIDE)
    expected = image(clip[0, :, ::2].transpose(0, 1))
    for frames, found in zip(expected, net(clip), strict=True):
        assert_close('map', frames.transpose(0, 1)[None], found)


def test_average_inflation_mixes_frames():
    image, net = image_net(), video_net()
    net.load_state_dict(image.state_dict())
    clip = draw(1, 3, 6, SIDE, SIDE)
    other = clip.clone()
    other[:, :, -1] = 0
    assert (net(clip)[-1] - net(other)[-1])[:, :, 0].abs().max() > 1e-6


def test_checkpoint_of_a_classifier_of_images(tmp_path):
    """It may be made for another size, and lies under a prefix."""
    image = randomized(LiSANet(ARCH, img_size=64))
    state = {f'backbone.{name}': value for name, value in image.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'image.pth')
    cfg = dict(
        type='Pretrained', checkpoint=str(tmp_path / 'image.pth'), prefix='backbone.'
    )
    net = video_net(inflation='center', init_cfg=cfg)
    net.init_weights()
    clip = draw(1, 3, 2, 64, 64)
    expected = image(clip[:, :, 0])[0]
    assert_close('map', expected, net(clip)[0][:, :, 0], torch.float32)


def test_weights_of_clips_load_as_they_are():
    net, other = randomized(video_net()), video_net()
    other.load_state_dict(net.state_dict())
    clip = draw(1, 3, 6, SIDE, SIDE)
    assert_close('map', net(clip)[-1], other(clip)[-1])


def unit(x):
    return x / (x @ x + 1e-6) ** 0.5


def wrapped(i, n, grid):
    return tuple((a - b) % side for a, b, side in zip(i, n, grid, strict=True))


def attention_by_loops(layer, x):
    """Sum over all pairs of tokens, with offsets that wrap in time and space."""
    T, H, W, C = x.shape
    M, grid = layer.num_heads, (T, H, W)
    D, K = layer.bias.shape
    places = list(product(*(range(side) for side in grid)))
    qkv = layer.qkv(x).reshape(T, H, W, 3, M, D)
    out = torch.zeros(T, H, W, M, D, dtype=x.dtype)
    for m, i in product(range(M), places):
        q = unit(qkv[i][0, m])
        p = torch.zeros(K, dtype=x.dtype)
        for n in places:
            k = unit(qkv[n][1, m])
            p = p + (q * k) @ layer.w_a[(..., *wrapped(i, n, grid))]
        for j in places:
            weight = p @ layer.w_b[(..., *wrapped(i, j, grid))]
            out[i][m] += weight * qkv[j][2, m]
        out[i][m] += layer.bias @ p
    return layer.proj(layer.norm(out.reshape(T, H, W, C)))


@pytest.mark.parametrize('grid', [(3, 2, 3), (4, 1, 2), (1, 2, 2)], ids=str)
def test_attention_over_time_and_space_is_a_sum_over_all_pairs(grid):
    layer = randomized(StructureAwareAttention(6, 2, grid, patterns=2))
    x = draw(*grid, 6)
    with torch.no_grad():
        assert_close('out', attention_by_loops(layer, x), layer(x[None])[0])


@pytest.mark.slow
def test_gradients_of_the_attention():
    layer = randomized(StructureAwareAttention(4, 2, (3, 2, 2), patterns=2))
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *params):
        values = dict(zip(names, params, strict=True))
        return torch.func.functional_call(layer, values, (x,))

    inputs = [draw(1, 3, 2, 2, 4), *layer.parameters()]
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize('stride', [1, 2])
def test_convolution_is_a_sum_of_taps_that_repeats_the_ends(stride):
    image = DepthwiseConv(4, 3)
    conv = randomized(ClipConv(image, stride=stride))
    image = image.double()
    x = draw(2, 5, 6, 7, 4)
    frames = []
    for t in range(0, 5, stride):
        total = conv.bias
        for tap in range(3):
            weights = dict(weight=conv.weight[:, :, tap], bias=torch.zeros(4).double())
            frame = x[:, min(max(t + tap - 1, 0), 4)]
            total = total + torch.func.functional_call(image, weights, (frame,))
        frames.append(total)
    assert_close('out', torch.stack(frames, 1), conv(x))


@pytest.mark.parametrize(
    'frames, height, width', [(1, 32, 32), (5, 37, 21), (8, 1, 40)]
)
def test_any_clip_and_every_parameter_gets_a_gradient(frames, height, width):
    net = randomized(video_net(), torch.float32).train()
    maps = net(draw(2, 3, frames, height, width).float())
    for index, found in enumerate(maps):
        sides = tuple(-(-side // (4 << index)) for side in (height, width))
        assert found.shape[2:] == (-(-frames // 2), *sides)
    sum(found.square().mean() for found in maps).backward()
    for name, param in net.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name
        assert param.grad.any(), name


@pytest.mark.parametrize('mixer', VIDEO_MIXERS)
def test_isotropic_network(mixer):
    arch = dict(
        embed_dims=(32,), depths=(1,), mlp_ratios=(2,), conv_stages=0, patterns=2
    )
    net = VideoLiSANet(arch, mixer=mixer, num_frames=4, img_size=48)
    clip = draw(1, 3, 4, 48, 48).float()
    assert net(clip)[0].shape == (1, 32, 2, 3, 3)
    assert all(param.requires_grad for param in net.parameters())
    net(clip)[0].square().sum().backward()
    assert all(param.grad.any() for param in net.parameters())


def test_frozen_stages():
    net = VideoLiSANet(ARCH, img_size=SIDE, frozen_stages=1)
    frozen = {n for n, p in net.named_parameters() if not p.requires_grad}
    assert {n for n, _ in net.stages[1].named_parameters('stages.1')}.isdisjoint(frozen)
    assert {n.split('.')[0] for n in frozen} == {'stem', 'stages'}


test_errors = refuses(
    call,
    (lambda: VideoLiSANet(ARCH, num_frames=0), 'num_frames .* got 0'),
    (lambda: VideoLiSANet(ARCH, inflation='zero'), "inflation .* got 'zero'"),
    (lambda: VideoLiSANet(ARCH, mixer='rsa'), "must be one of .'lisa'., got 'rsa'"),
    (
        lambda: VideoLiSANet('isotropic', mixer='local'),
        "several|one stage must be one of .*'rsa'., got 'local'",
    ),
    (lambda: VideoLiSANet('tiny'), "arch must be one of .* got 'tiny'"),
    (
        lambda: VideoLiSANet('isotropic', img_size=32).load_state_dict(
            LiSANet('isotropic', img_size=32).state_dict()
        ),
        'isotropic image network cannot be inflated',
    ),
    (
        lambda: VideoLiSANet(
            'isotropic', img_size=32, num_frames=4, mixer='self_attention_rpe'
        )(torch.zeros(1, 3, 8, 32, 32)),
        r'grid \(2, 2, 2\) .* got the grid \(4, 2, 2\)',
    ),
    (
        lambda: VideoLiSANet(ARCH)(torch.zeros(1, 3, 64, 64)),
        r'shape \(B, 3, T, H, W\), .* got \(1, 3, 64, 64\) of float32',
    ),
)
