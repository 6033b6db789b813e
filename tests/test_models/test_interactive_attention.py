"""InteractiveAttention against the paper's equations, written here once more."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mmattn.models.layers import InteractiveAttention

ROOT = Path(__file__).parents[2]
AS_PRINTED = dict(interact_expand=1, local_kernel=None, gate=False)
GRIDS = [(14, 14), (21, 7), (7, 7), (3, 5), (1, 1)]


def build(embed_dims=24, num_heads=3, **kwargs):
    torch.manual_seed(0)
    return InteractiveAttention(embed_dims, num_heads, **kwargs).double()


def grid_of(height, width, embed_dims=24):
    generator = torch.Generator().manual_seed(1)
    shape = (2, height, width, embed_dims)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


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


@pytest.mark.parametrize('grid', GRIDS, ids=str)
@pytest.mark.parametrize('std', [0.02, 1.0], ids=['start', 'trained'])
def test_equation_7_as_printed(grid, std):
    layer = build(**AS_PRINTED)
    layer.reset_mixing(std=std)
    x = grid_of(*grid)
    expected = np.stack([equation_7(layer, image.numpy()) for image in x])
    assert_close(layer(x), torch.from_numpy(expected))


@pytest.mark.parametrize('expand', [1, 2, 3])
def test_interaction_without_noise_is_none(expand):
    layer, plain = build(interact_expand=expand), build(interact_expand=None)
    layer.reset_mixing(std=0)
    missing, unexpected = plain.load_state_dict(layer.state_dict(), strict=False)
    assert not missing and set(unexpected) == {'w1_q', 'w2_q', 'w1_k', 'w2_k'}
    x = grid_of(9, 10)
    assert_close(layer(x), plain(x))


def test_noise_parts_the_copies_of_a_head():
    layer = build(interact_expand=2)
    layer(grid_of(9, 10)).square().mean().backward()
    for name in ('w1_q', 'w1_k'):
        first, second = getattr(layer, name).grad.chunk(2)
        assert not torch.allclose(first, second)


@pytest.mark.parametrize('c, h', [(192, 3), (384, 6), (320, 10), (512, 16)])
def test_parameters_of_the_default(c, h):
    """Projections, interaction of width 2h, 7x7 convolution, gate of width c / 4."""
    expected = 4 * c**2 + 4 * c + 8 * h**2 + 50 * c + c**2 / 2 + 1.25 * c
    with torch.device('meta'):
        layer = InteractiveAttention(c, h)
        plain = InteractiveAttention(c, h, **AS_PRINTED)
    assert sum(p.numel() for p in layer.parameters()) == expected
    assert sum(p.numel() for p in plain.parameters()) == 4 * c**2 + 4 * c + 4 * h**2


def test_local_branch_is_a_convolution_of_the_values():
    layer, plain = build(gate=False), build(gate=False, local_kernel=None)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = grid_of(9, 10)
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
    x = grid_of(9, 10)
    heads = {}
    plain.proj.register_forward_pre_hook(lambda _, args: heads.update(out=args[0]))
    plain(x)
    mean = heads['out'].mean((1, 2))  # (B, C)
    squeeze, _, excite, _ = layer.gate
    gate = torch.sigmoid(excite(squeeze(mean).relu()))[:, None, None]
    assert_close(layer(x), layer.proj(heads['out'] * gate))


@pytest.mark.parametrize(
    'kwargs',
    [{}, AS_PRINTED, dict(interact_expand=None), dict(landmarks=1), dict(landmarks=14)],
    ids=str,
)
@pytest.mark.parametrize('grid', [(9, 10), (1, 13)], ids=str)
def test_every_parameter_has_a_gradient(kwargs, grid):
    layer = build(**kwargs)
    layer(grid_of(*grid)).square().mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_images_of_any_size_cost_linear_attention():
    """The operator sees at most 49 landmarks, and fewer on a smaller grid."""
    layer = build()
    for (height, width), landmarks in {(30, 20): 49, (5, 9): 35, (1, 2): 2}.items():
        q, k = layer._pool(layer.qkv(grid_of(height, width))[..., :48])
        assert q.shape == k.shape == (2, landmarks, 3, 8)


@pytest.mark.parametrize('backend', ['torch', 'reference'])
def test_backends_agree(backend):
    x = grid_of(9, 10)
    assert_close(build(backend=backend)(x), build()(x))


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(num_heads=5), '24 channels'),
        (dict(landmarks=0), 'landmarks'),
        (dict(local_kernel=4), 'local_kernel'),
    ],
    ids=['heads', 'landmarks', 'local_kernel'],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_unknown_backend():
    with pytest.raises(ValueError, match="'metal'"):
        build(backend='metal')(grid_of(3, 3))


def test_an_expansion_of_2_fits_the_tables_best():
    """As the class says: how many of 18 figures of the classifiers are the paper's.

    `test_tables` counts the networks with the default expansion, which is 2.
    """
    pytest.importorskip('mmpretrain')
    from mmengine.config import Config

    from mmattn.analysis import count, equals_as_printed, paper_rows
    from mmattn.analysis.flops import build as build_network

    default, single = [], []
    for row in paper_rows():
        if not re.match(r'configs/classification/(ivit|vit_.*_imhsa)', row['config']):
            continue
        cfg = Config.fromfile(ROOT / row['config'])
        cfg.merge_from_dict(row.get('options', {}))
        assert 'interact_expand' not in cfg.model.backbone
        cfg.model.backbone.interact_expand = 1
        part = count(build_network(cfg), tuple(row['shape'])).part(row.get('part', ''))
        flops = part.flops_in(row.get('convention', 'with transforms'))
        for kind, ours in (('params', part.params / 1e6), ('flops', flops / 1e9)):
            if kind in row:
                default.append(row[kind])
                single.append(dict(row[kind], ours=ours))
    assert len(default) == 18
    assert sum(map(equals_as_printed, default)) == 16
    assert sum(map(equals_as_printed, single)) == 10


def factor_flops(depth, grid, heads, landmarks, expand, patch_size, C=192):
    """Return FLOPs in G of a ViT by equations 7, 6 and 5, in the order of Table 8."""
    N, pairs = grid**2, heads**2 * expand  # numbers in w1 or w2
    body = N * (12 * C**2 * depth + 3 * patch_size**2 * C) + 1000 * C
    decomposed = body + 4 * N * landmarks * C * depth
    both = decomposed + 4 * N * landmarks * pairs * depth
    dense = body + 2 * N**2 * (C + pairs) * depth
    return both / 1e9, decomposed / 1e9, dense / 1e9


def test_no_vit_of_12_blocks_has_the_flops_of_table_8():
    """As the note of its rows says, and at 384 and 416 pixels."""
    from mmattn.analysis import paper_rows

    rows = [row for row in paper_rows() if row['name'].startswith('vit_t_')]
    ours, printed = ([row['flops'][k] for row in rows] for k in ('ours', 'paper'))
    assert ours == pytest.approx(factor_flops(12, 14, 3, 49, 1, 16), abs=5e-4)
    note = ' '.join(rows[0]['note'].split())
    for grid, text in ((24, '{:.3f}, {:.3f} and {:.3f}'), (26, '{2:.3f} for inter')):
        assert text.format(*factor_flops(12, grid, 3, 49, 1, 16)) in note
    sides = np.array([4, 5, 6, 7, 8, 10, 12, 14])
    depth, *others = np.meshgrid(
        np.arange(4, 25),
        np.arange(7, 61),
        np.array([2, 3, 4, 6, 8, 12, 16, 24]),
        sides**2,
        np.array([1, 2]),
        np.array([4, 8, 14, 16]),
        indexing='ij',
        sparse=True,
    )
    near = [
        np.abs(flops - figure) <= 0.05
        for flops, figure in zip(factor_flops(depth, *others), printed, strict=True)
    ]
    assert printed == [3.3, 3.3, 5.8]
    all_near = near[0] & near[1] & near[2]  # depth comes first
    fits = depth.ravel()[all_near.any((1, 2, 3, 4, 5))]
    assert fits.tolist() == [5, 6, 7, 8, 9]
