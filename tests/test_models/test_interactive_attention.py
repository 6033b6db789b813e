"""InteractiveAttention against the paper's equations, written here once more."""

import numpy as np
import pytest
import torch
from layer_checks import randn
from refusals import refuses
from torch.testing import assert_close

from mmattn.models.layers import InteractiveAttention

AS_PRINTED = dict(interact_expand=1, local_kernel=None, gate=False)


def build(num_heads=3, **kwargs):
    torch.manual_seed(0)
    return InteractiveAttention(24, num_heads, **kwargs).double()


def numpy_weights(layer):
    return {name: value.detach().numpy() for name, value in layer.named_parameters()}


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def equation_7(layer, x):
    """A_Q A_K V of one image (H, W, C), for grids that split into 7 x 7 cells."""
    w, heads = numpy_weights(layer), layer.num_heads
    H, W, C = x.shape
    q, k, v = np.split(x @ w['qkv.weight'].T + w['qkv.bias'], 3, axis=-1)

    def landmarks(a):
        h, b = min(7, H), min(7, W)
        return a.reshape(h, H // h, b, W // b, C).mean((1, 3)).reshape(-1, C)

    def scores(a, b):
        a, b = (t.reshape(-1, heads, C // heads) for t in (a, b))
        return np.einsum('imd,jmd->mij', a, b) / np.sqrt(C // heads)

    def interact(side, s):
        s = softmax(np.einsum('em,mij->eij', w[f'w1_{side}'], s))
        return np.einsum('me,eij->mij', w[f'w2_{side}'], s)

    map_q = interact('q', scores(q, landmarks(k)))  # (M, N, L)
    map_k = interact('k', scores(landmarks(q), k))  # (M, L, N)
    out = np.einsum('mnl,mlp,pmd->nmd', map_q, map_k, v.reshape(-1, heads, C // heads))
    return out.reshape(H, W, C) @ w['proj.weight'].T + w['proj.bias']


@pytest.mark.parametrize('grid', [(14, 14), (21, 7), (3, 5), (1, 1)], ids=str)
def test_equation_7_as_printed(grid):
    layer = build(**AS_PRINTED)
    layer.reset_mixing(std=1.0)
    x = randn(2, *grid, 24)
    expected = np.stack([equation_7(layer, image.numpy()) for image in x])
    assert_close(layer(x), torch.from_numpy(expected))


def test_interaction_without_noise_is_none():
    layer, plain = build(interact_expand=3), build(interact_expand=None)
    layer.reset_mixing(std=0)
    missing, unexpected = plain.load_state_dict(layer.state_dict(), strict=False)
    assert not missing and set(unexpected) == {'w1_q', 'w2_q', 'w1_k', 'w2_k'}
    x = randn(2, 9, 10, 24)
    assert_close(layer(x), plain(x))


def test_noise_parts_the_copies_of_a_head():
    layer = build(interact_expand=2)
    layer(randn(2, 9, 10, 24)).square().mean().backward()
    for name in ('w1_q', 'w1_k'):
        first, second = getattr(layer, name).grad.chunk(2)
        assert not torch.allclose(first, second)


def test_local_branch_is_a_convolution_of_the_values():
    layer, plain = build(gate=False), build(gate=False, local_kernel=None)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = randn(2, 9, 10, 24)
    value = layer.qkv(x)[..., 48:]
    padded = np.pad(value.detach().numpy(), ((0, 0), (3, 3), (3, 3), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(1, 2))
    w = numpy_weights(layer)
    local = np.einsum('bhwcij,cij->bhwc', windows, w['local.weight'][:, 0])
    local = torch.from_numpy((local + w['local.bias']) @ w['proj.weight'].T)
    assert_close(layer(x), plain(x) + local)


def test_gate_scales_channels_by_their_mean():
    layer, plain = build(), build(gate=False)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = randn(2, 9, 10, 24)
    heads = {}
    plain.proj.register_forward_pre_hook(lambda _, args: heads.update(out=args[0]))
    plain(x)
    mean = heads['out'].mean((1, 2))  # (B, C)
    squeeze, _, excite, _ = layer.gate
    gate = torch.sigmoid(excite(squeeze(mean).relu()))[:, None, None]
    assert_close(layer(x), layer.proj(heads['out'] * gate))


def test_images_of_any_size_cost_linear_attention():
    """The operator sees at most 49 landmarks, and fewer on a smaller grid."""
    layer = build()
    for (height, width), landmarks in {(30, 20): 49, (5, 9): 35, (1, 2): 2}.items():
        q, k = layer._pool(layer.qkv(randn(2, height, width, 24))[..., :48])
        assert q.shape == k.shape == (2, landmarks, 3, 8)


def test_backend_is_the_operators():
    x = randn(2, 9, 10, 24)
    assert_close(build(backend='reference')(x), build()(x))
    with pytest.raises(ValueError, match="'metal'"):
        build(backend='metal')(x)


test_wrong_arguments = refuses(
    build,
    (dict(num_heads=5), '24 channels'),
    (dict(landmarks=0), 'landmarks'),
    (dict(local_kernel=4), 'local_kernel'),
)
