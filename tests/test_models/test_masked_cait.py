"""MaskedCaiT: timm's CaiT, masks between its two mixtures of heads, class token."""

import pytest
import torch
from backbones import counted
from layer_checks import out_and_gradients, randn, randomize
from refusals import refuses
from timm.models.cait import Cait
from torch import nn
from torch.testing import assert_close

from mmattn.models import MaskedCaiT
from mmattn.models.backbones.masked_cait import MaskedTalkingHeads
from mmattn.ops import neighborhood_mask

SHALLOW = dict(embed_dims=48, depth=2, num_heads=4)
MASKS = {
    'hard': dict(),
    'neg-inf': dict(mask_fill='neg_inf'),
    'soft': dict(soft=True),
    'wide': dict(kernel_size=5),
}
GRID = 5, 4


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return MaskedCaiT(arch, **{'img_size': 64, **kwargs}).eval()


def timms():
    """timm's network with random weights, so large that all of them matter."""
    torch.manual_seed(0)
    model = Cait(img_size=64, embed_dim=48, depth=2, num_heads=4, num_classes=0)
    for name, param in model.named_parameters():
        nn.init.normal_(param, mean=float(name.endswith('norm1.weight')), std=0.2)
    return model.eval()


def test_equals_timm_without_masks():
    theirs, x = timms().double(), randn(2, 3, 64, 64)
    expected = theirs.forward_features(x)
    tokens, maps = (
        build(masking='none', out_type=out_type).double()
        for out_type in ('cls_token', 'featmap')
    )
    tokens.load_state_dict(theirs.state_dict(), strict=True)
    assert not maps.load_state_dict(theirs.state_dict(), strict=False).missing_keys
    assert_close(tokens(x), (expected[:, 0],))
    assert_close(maps(x)[0].flatten(2).transpose(1, 2), expected[:, 1:])


def by_hand(layer, x):
    """Mask between the mixtures, head by head."""
    near = neighborhood_mask(GRID, layer.kernel_size)
    alphas = iter(() if layer.alpha is None else layer.alpha)
    qkv = layer.qkv(x).view(2, 20, 3, 4, 12).unbind(2)
    q, k, v = (part.transpose(1, 2) for part in qkv)
    scores = q @ k.mT / 12**0.5
    weights = []
    for head in range(4):
        row, shift = layer.proj_l.weight[head], layer.proj_l.bias[head]
        mixed = (row[:, None, None] * scores).sum(1) + shift
        if head in layer.masked_heads:
            fill = 0 if layer.mask_fill == 'zero' else -torch.inf
            if layer.alpha is not None:
                fill = next(alphas) * mixed
            mixed = torch.where(near, mixed, fill)
        weights.append(mixed.softmax(-1))
    outs = []
    for head in range(4):
        row, shift = layer.proj_w.weight[head], layer.proj_w.bias[head]
        mixed = sum(w * weight for w, weight in zip(row, weights, strict=True)) + shift
        outs.append(mixed @ v[:, head])
    return layer.proj(torch.cat(outs, -1)).view_as(x)


@pytest.mark.parametrize('settings', MASKS.values(), ids=MASKS)
@pytest.mark.parametrize('masked_heads', [(1, 3), (0, 1, 2, 3)], ids=str)
def test_what_the_softmax_gets_is_masked(settings, masked_heads):
    torch.manual_seed(0)
    layer = MaskedTalkingHeads(48, 4, masked_heads=masked_heads, **settings)
    layer, x = randomize(layer.double(), 0.3), randn(2, *GRID, 48)
    expected = out_and_gradients(layer, lambda x: by_hand(layer, x), x)
    assert_close(out_and_gradients(layer, layer, x), expected)


@pytest.mark.parametrize('out_indices', [-1, 0])
def test_every_parameter_learns_from_the_class_token(out_indices):
    """Blocks run again in the backward; so does the attention of the class token."""
    settings = dict(masking='soft', out_type='cls_token', out_indices=out_indices)
    results, x = [], randn(2, 3, 33, 47, dtype=torch.float32)
    for with_cp in (False, True):
        model = build(**settings, layer_scale=1.0, with_cp=with_cp)
        runs = counted(m for m in model.modules() if 'Block' in type(m).__name__)
        out, gradients = out_and_gradients(model, lambda x, m=model: m(x)[0], x)
        assert out.shape == (2, 48)
        results.append(gradients)
        assert list(runs.values()) == [1 + with_cp] * (out_indices % 2 + 1 + 2)
    assert set(results[0]) == {'x', *(name for name, _ in model.named_parameters())}
    assert_close(*results)


test_wrong_settings = refuses(
    build,
    (dict(out_type='raw'), "'raw'"),
    (dict(out_type='cls_token', out_indices=(0, 1)), r'got \(0, 1\)'),
    (dict(masking='soft', mask_fill='neg_inf'), "'neg_inf'"),
)
