"""MaskedCaiT: timm's CaiT, masks between its two mixtures of heads, class token."""

import pytest
import timm
import torch
from timm.layers import DropPath
from timm.models.cait import Cait
from torch import nn
from torch.testing import assert_close

from mmattn.models import MaskedCaiT
from mmattn.models.backbones.masked_cait import MaskedTalkingHeads
from mmattn.models.layers import MaskedAttention, undecayed_names
from mmattn.models.layers.patches import resize_pos_embed
from mmattn.ops import neighborhood_mask

SHALLOW = dict(embed_dims=48, depth=2, num_heads=4)
PARAMETERS = {'xxs24': 11_956_264, 'xs24': 26_560_648, 's24': 46_916_200}
TABLE_7 = {'xxs24': 12, 'xs24': 26.6, 's24': 46.9}  # millions
MASKS = {
    'hard': dict(),
    'neg-inf': dict(mask_fill='neg_inf'),
    'soft': dict(soft=True),
    'wide': dict(kernel_size=5),
}
GRID = 5, 4

every_mask = pytest.mark.parametrize('settings', MASKS.values(), ids=MASKS)


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return MaskedCaiT(arch, **{'img_size': 64, **kwargs}).eval()


def randn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=dtype)


def timms():
    """timm's network with random weights, so large that all of them matter."""
    torch.manual_seed(0)
    model = Cait(img_size=64, embed_dim=48, depth=2, num_heads=4, num_classes=0)
    for name, param in model.named_parameters():
        nn.init.normal_(param, mean=float(name.endswith('norm1.weight')), std=0.2)
    return model.eval()


def attention(masked_heads, **settings):
    torch.manual_seed(0)
    layer = MaskedTalkingHeads(48, 4, masked_heads=masked_heads, **settings).double()
    for param in layer.parameters():
        nn.init.normal_(param, std=0.3)
    return layer


def gradients(layer, out):
    layer.zero_grad()
    (out * randn(*out.shape, dtype=out.dtype)).sum().backward()
    return {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch):
    with torch.device('meta'):
        models = [MaskedCaiT(arch, masking=m, out_type='cls_token') for m in
                  ('sch1', 'soft')]  # fmt: skip
        maps = MaskedCaiT(arch)
    C = models[0].out_channels[0]
    hard, soft = (sum(p.numel() for p in m.parameters()) for m in models)
    assert hard + 1000 * (C + 1) == PARAMETERS[arch]
    assert PARAMETERS[arch] / 1e6 == pytest.approx(TABLE_7[arch], abs=0.05)
    assert soft - hard == 21 * models[0].arch_zoo[arch]['num_heads']
    names = {name for name, _ in models[0].named_parameters()}
    missing = names - {name for name, _ in maps.named_parameters()}
    assert {name.split('.')[0] for name in missing} == {'class_attention'}


def test_weights_of_timm_load_unchanged():
    theirs = timm.create_model('cait_xxs24_224', num_classes=0).eval()
    for block in theirs.blocks:
        nn.init.normal_(block.gamma_1)
    model = MaskedCaiT('xxs24', masking='none', out_type='cls_token').eval()
    model.load_state_dict(theirs.state_dict(), strict=True)
    x = randn(1, 3, 224, 224)
    with torch.no_grad():
        assert_close(model(x)[0], theirs(x))


def test_equals_timm_without_masks():
    theirs, x = timms(), randn(2, 3, 64, 64)
    expected = theirs.forward_features(x)
    tokens, maps = (
        build(masking='none', out_type=out_type)
        for out_type in ('cls_token', 'featmap')
    )
    tokens.load_state_dict(theirs.state_dict(), strict=True)
    assert not maps.load_state_dict(theirs.state_dict(), strict=False).missing_keys
    assert_close(tokens(x), (expected[:, 0],))
    assert_close(maps(x)[0].flatten(2).transpose(1, 2), expected[:, 1:])


def test_masks_need_no_other_weights():
    """They change what is computed, unless the map is inside the stencil."""
    models = [build(masking=m, out_type='cls_token') for m in ('none', [4, 4])]
    for model in models:
        model.load_state_dict(timms().state_dict(), strict=True)
    small, large = (
        [model(randn(2, 3, side, side))[0] for model in models] for side in (32, 64)
    )
    assert_close(*small)
    assert (large[0] - large[1]).abs().max() > 0.01


@every_mask
@pytest.mark.parametrize('masked_heads', [(0,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_what_the_softmax_gets_is_masked(settings, masked_heads):
    """Between the mixtures, head by head."""
    layer, x = attention(masked_heads, **settings), randn(2, *GRID, 48).double()
    near = neighborhood_mask(GRID, layer.kernel_size)
    alphas = iter(() if layer.alpha is None else layer.alpha)
    qkv = layer.qkv(x).view(2, 20, 3, 4, 12).unbind(2)
    q, k, v = (part.transpose(1, 2) for part in qkv)
    scores = q @ k.mT / 12**0.5
    weights = []
    for head in range(4):
        row, shift = layer.proj_l.weight[head], layer.proj_l.bias[head]
        mixed = (row[:, None, None] * scores).sum(1) + shift
        if head in masked_heads:
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
    expected = layer.proj(torch.cat(outs, -1)).view_as(x)
    grads = gradients(layer, expected)
    out = layer(x)
    assert_close(out, expected)
    assert_close(gradients(layer, out), grads)


@every_mask
def test_without_mixtures_it_is_masked_attention(settings):
    """The operator is a second oracle, of the same weights."""
    layer = attention((0, 2), **settings)
    for mixture in (layer.proj_l, layer.proj_w):
        nn.init.eye_(mixture.weight)
        nn.init.zeros_(mixture.bias)
    other = MaskedAttention(48, 4, (0, 2), **settings).double()
    other.load_state_dict(
        {
            name: value
            for name, value in layer.state_dict().items()
            if 'proj_' not in name
        }
    )
    x = randn(2, *GRID, 48).double()
    out, expected = layer(x).flatten(1, 2), other(x.flatten(1, 2), GRID)
    assert_close(out, expected)
    theirs = gradients(other, expected)
    ours = gradients(layer, out)
    assert_close({name: ours[name] for name in theirs}, theirs)


def test_blocks_are_masked_as_asked():
    with torch.device('meta'):
        model = MaskedCaiT(masking='sch2', kernel_size=5, mask_fill='neg_inf')
        soft = MaskedCaiT(masking='soft')
    layers = [block.attn for block in model.blocks]
    counts = [len(layer.masked_heads) for layer in layers]
    assert counts == [3] * 8 + [1] * 12 + [0] * 4
    assert all(layer.kernel_size == 5 for layer in layers)
    assert all(layer.mask_fill == 'neg_inf' for layer in layers)
    logits = [block.attn.alpha_logit is not None for block in soft.blocks]
    assert logits == [True] * 21 + [False] * 3
    assert 'blocks.0.attn.alpha_logit' in undecayed_names(soft)


def test_soft_masks_of_a_list_start_where_asked():
    masking = [dict(heads=2, soft=True), 1]
    first, second = (b.attn for b in build(masking=masking, alpha_init=0.2).blocks)
    assert_close(first.alpha.float(), torch.tensor([0.2, 0.2]))
    assert first.masked_heads == (0, 1) and second.alpha is None
    assert build(masking='soft').blocks[0].attn.alpha.eq(0.5).all()
    with pytest.raises(ValueError, match='got 0'):
        build(alpha_init=0)


def test_position_embedding_is_resized_on_load_as_at_run_time():
    model, larger = build(), build(img_size=(96, 110))
    weights = model.state_dict()
    larger.load_state_dict(weights)
    expected = resize_pos_embed(weights['stem.pos_embed'], (4, 4), (6, 7))
    assert_close(larger.stem.pos_embed.data, expected)
    x = randn(1, 3, 96, 112)
    assert_close(larger(x), model(x))


@pytest.mark.parametrize('size', [(64, 64), (33, 47), (1, 1)], ids=str)
@pytest.mark.parametrize('out_indices', [-1, 0])
@pytest.mark.parametrize('with_cp', [False, True], ids=['plain', 'with_cp'])
def test_every_parameter_learns_from_the_class_token(with_cp, out_indices, size):
    settings = dict(masking='soft', out_type='cls_token', out_indices=out_indices)
    model = build(**settings, layer_scale=1.0, with_cp=with_cp)
    (out,) = model(randn(2, 3, *size))
    assert out.shape == (2, 48)
    assert len(model.blocks) == out_indices % 2 + 1
    grads = gradients(model, out)
    assert set(grads) == {name for name, _ in model.named_parameters()}
    expected = build(**settings, layer_scale=1.0)
    assert_close(grads, gradients(expected, expected(randn(2, 3, *size))[0]))


def test_norms_of_what_is_returned():
    """CaiT's for the last one; each of the others has its own."""
    model = build(out_indices=(0, 1))
    assert set(model.out_norms) == {'0', '1'}
    nn.init.constant_(model.out_norms['0'].bias, 1.0)
    nn.init.constant_(model.out_norms['1'].bias, 2.0)
    means = [out.mean((1, 2, 3)) for out in model(randn(2, 3, 64, 64))]
    assert_close(means, [torch.full((2,), value) for value in (1.0, 2.0)])


def test_drop_path_and_layer_scale_are_caits():
    model = build(drop_path_rate=0.2)
    rates = [m.drop_prob for m in model.modules() if isinstance(m, DropPath)]
    assert rates and set(rates) == {0.2}
    assert_close(model.blocks[0].gamma_1.data, torch.full((48,), 1e-5))


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(out_type='raw'), "'raw'"),
        (dict(out_type='cls_token', out_indices=(0, 1)), r'got \(0, 1\)'),
        (dict(masking='sch3'), "'sch3'"),
        (dict(masking=[1, 5]), 'got 5'),
        (dict(kernel_size=2), 'got 2'),
        (dict(masking='soft', mask_fill='neg_inf'), "'neg_inf'"),
    ],
    ids=str,
)
def test_wrong_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)
