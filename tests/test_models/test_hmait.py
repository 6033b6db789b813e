"""H-MaiT: its frame against timm's Swin, its bias by loops, and Swin's checkpoints."""

import re

import pytest
import torch
import torch.nn.functional as F
from layer_checks import randn, randomize
from mmdet.models.backbones import swin as mmdet_swin
from mmpretrain.models.backbones import swin_transformer as mmpretrain_swin
from refusals import refuses
from timm.models.swin_transformer import SwinTransformer
from torch import nn
from torch.testing import assert_close

from mmattn.models import HMaiT
from mmattn.models.backbones.hmait import convert_state_dict
from mmattn.models.layers import RelativeMaskedAttention
from mmattn.weights.load import load_weights

SHALLOW = dict(
    embed_dims=(16, 32, 64, 128),
    depths=(1, 2, 1, 1),
    num_heads=(1, 2, 4, 8),
    masked_heads=(1, 2, 1, 0),
)


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return HMaiT(arch, **kwargs)


def attentions(model):
    return [m for m in model.modules() if isinstance(m, RelativeMaskedAttention)]


def timm_name(name):
    """Return timm's name of a parameter of Swin."""
    name = re.sub(r'^stem\.', 'patch_embed.', re.sub(r'^stages\.', 'layers.', name))
    return name.replace('out_norms.3', 'norm')


def swin(img_size, window_size, num_classes=0):
    arch = dict(embed_dim=16, depths=SHALLOW['depths'], num_heads=SHALLOW['num_heads'])
    sizes = dict(img_size=img_size, window_size=window_size)
    return SwinTransformer(num_classes=num_classes, **sizes, **arch)


def clipped_table(table, grid):
    """Swin's 13 x 13 table as one of all offsets of a map, by loops."""
    H, W = grid
    rows = [
        table[(min(max(dy, -6), 6) + 6) * 13 + min(max(dx, -6), 6) + 6]
        for dy in range(1 - H, H)
        for dx in range(1 - W, W)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize('position', ['relative', 'full'])
def test_without_masks_it_is_swin_with_windows_of_the_whole_map(position):
    grids = (16, 24), (8, 12), (4, 6), (2, 3)
    size = tuple(4 * side for side in grids[0])
    settings = dict(position=position, img_size=size, out_indices=(1, 3))
    model = randomize(build(masked_heads=(0,) * 4, **settings), 0.3)
    theirs = swin(size, grids)
    weights = {
        timm_name(name): value
        for name, value in model.state_dict().items()
        if 'out_norms.1' not in name
    }
    if position == 'relative':
        for name, value in weights.items():
            if 'bias_table' in name:
                weights[name] = clipped_table(value, grids[int(name.split('.')[1])])
    theirs.load_state_dict(weights, strict=True)
    model, theirs = model.double(), theirs.double().eval()
    x = randn(2, 3, *size)
    second = theirs.layers[1](theirs.layers[0](theirs.patch_embed(x)))
    expected = [model.out_norms['1'](second), theirs.forward_features(x)]
    assert_close([out.movedim(1, -1) for out in model(x)], expected)


def test_images_are_padded_right_and_below():
    model, x = build(out_norm=False, out_indices=0).double(), randn(1, 3, 18, 25)
    assert_close(model(x), model(F.pad(x, (0, 3, 0, 2))))


def test_options_reach_the_attention():
    settings = dict(kernel_size=5, mask_fill='neg_inf', backend='reference')
    layers = attentions(build(masked_heads=(0, 1, 2, 3), **settings))
    for attn, masked in zip(layers, (0, 1, 1, 2, 3), strict=True):
        assert settings == {name: getattr(attn, name) for name in settings}
        assert attn.masked_heads == tuple(range(masked))


@pytest.mark.parametrize('position', ['relative', 'full', 'absolute', 'none'])
def test_position_makes_pixels_differ(position):
    """The image is constant and there are no masks, so borders tell nothing."""
    settings = dict(masked_heads=(0,) * 4, out_indices=0, out_norm=False)
    model = randomize(build(position=position, img_size=64, **settings), 0.3).double()
    # Relative bias alone leaves equal tokens equal: what they gather is equal.
    for size in (64, 96):
        x = randn(1, 3, 4, 4).repeat(1, 1, *[size // 4] * 2)
        x[..., :4, :4] = 1  # one token differs
        out = model(x)[0].flatten(2)[..., 1:]
        assert (out.std(-1).max() > 1e-6) == (position != 'none')


test_wrong_settings = refuses(
    build,
    (dict(position='learned'), "'learned'"),
    (dict(masked_heads=(3, 6, 4)), r'\(3, 6, 4\)'),
    (dict(masked_heads=(1, 2, 5, 0)), r'\(1, 2, 5, 0\)'),
    (dict(masked_heads=(-1, 2, 1, 0)), '-1'),
)


def official_layout(weights):
    """The official repository's names and buffers, from timm's."""
    official = {}
    for name, value in weights.items():
        parts = name.split('.')
        if parts[2:3] == ['downsample']:
            parts[1] = str(int(parts[1]) - 1)
        official['.'.join(parts).replace('head.fc', 'head')] = value
        if parts[-1] == 'relative_position_bias_table':
            prefix = '.'.join(parts[:-1])
            official[f'{prefix}.relative_position_index'] = torch.zeros(49, 49).long()
            official[f'layers.{parts[1]}.blocks.1.attn_mask'] = torch.zeros(4, 49, 49)
    return official


def random_weights(model):
    return {k: torch.randn(v.shape) for k, v in model.state_dict().items()}


@pytest.mark.parametrize('layout', ['timm', 'official'])
def test_weights_of_swin_go_where_they_belong(layout):
    weights = random_weights(swin(224, 7, num_classes=5))
    given = official_layout(weights) if layout == 'official' else weights
    model = build(out_indices=3)
    report = load_weights(model, given)
    assert not (report.missing or report.mismatched)
    assert {name.split('.')[0] for name in report.unexpected} == {'head'}
    assert len(report.unexpected) == 2
    for name, value in model.state_dict().items():
        assert_close(value, weights[timm_name(name)])


@pytest.mark.parametrize('package', ['mmdet', 'mmpretrain'])
def test_mm_packages_swin_loads(package):
    arch = dict(embed_dims=16, depths=SHALLOW['depths'], num_heads=SHALLOW['num_heads'])
    if package == 'mmdet':
        theirs = mmdet_swin.SwinTransformer(**arch)
    else:
        theirs = mmpretrain_swin.SwinTransformer(arch)
    theirs.load_state_dict(random_weights(theirs), strict=False)
    model = build(out_indices=None if package == 'mmdet' else 3)
    detector = nn.ModuleDict(dict(backbone=model))
    given = {f'backbone.{k}': v for k, v in theirs.state_dict().items()}
    report = load_weights(detector, given)
    assert not (report.missing or report.mismatched or report.unexpected)
    x = torch.randn(1, 3, 28, 28)  # a window of 7 x 7
    tokens = theirs.patch_embed(x)[0]
    ours = model.stem(x.permute(0, 2, 3, 1))
    assert_close(ours.flatten(1, 2), tokens)
    expected, size = theirs.stages[0].downsample(tokens, (7, 7))
    assert_close(model.stages[1].downsample(ours).flatten(1, 2), expected)
    mlp = theirs.stages[0].blocks[0].ffn
    assert_close(model.stages[0].blocks[0].mlp(tokens), mlp(tokens) - tokens)


def test_what_swin_has_no_place_for_is_reported():
    weights = random_weights(swin(224, 7))
    report = load_weights(build(position='none'), weights)
    assert sum('bias_table' in name for name in report.unexpected) == 5
    report = load_weights(build(), random_weights(swin(384, 12)))
    assert len(report.mismatched) == 5
    with pytest.raises(ValueError, match='another shape'):
        report.check('swin', exact=False)
    assert 'stages.9.surprise' in convert_state_dict({'layers.9.surprise': weights})
