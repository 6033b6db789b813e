"""ViT: against timm's, its position embedding, patches, padding, its attentions."""

import numpy as np
import pytest
import timm
import torch
from layer_checks import randn, randomize
from refusals import refuses
from timm.models.vision_transformer import VisionTransformer
from torch.testing import assert_close

from mmattn.models import ViT
from mmattn.models.backbones.vit import InteractiveSelfAttention
from mmattn.models.layers.interactive_attention import reset_mixing_weights
from mmattn.weights.load import load_weights

SHALLOW = dict(embed_dims=48, depth=2, num_heads=3)


def build(**kwargs):
    torch.manual_seed(0)
    return ViT(**{'arch': SHALLOW, 'attention': 'mhsa', **kwargs}).eval()


def test_equals_timm():
    """With dense attention it is timm's network without class token."""
    settings = dict(patch_size=8, img_size=64)
    model = build(**settings).double()
    arch = dict(embed_dim=48, depth=2, num_heads=3)
    no_head = dict(num_classes=0, class_token=False, global_pool='')
    theirs = randomize(VisionTransformer(**settings, **arch, **no_head), 0.1)
    model.load_state_dict(theirs.state_dict())
    x = randn(2, 3, 64, 64)
    (out,) = model(x)
    assert_close(out.flatten(2).transpose(1, 2), theirs.double().eval()(x))


@pytest.mark.parametrize(('special', 'count'), [('', 1), ('_distilled', 2)])
def test_it_takes_all_of_deit_but_its_special_tokens(special, count):
    name = f'deit_tiny{special}_patch16_224'
    theirs = timm.create_model(name, img_size=64, depth=2, num_classes=5).state_dict()
    theirs = {name: torch.randn(value.shape) for name, value in theirs.items()}
    arch = dict(embed_dims=192, depth=2, num_heads=3)
    model, larger = (build(arch=arch, attention='imhsa', img_size=s) for s in (64, 96))
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    report, own = load_weights(model, theirs), model.state_dict()
    left = {name.split('.')[-1] for name in report.unexpected if 'head' not in name}
    assert left == {'cls_token', 'dist_token'} & theirs.keys()
    renamed = {
        'stem.proj.weight': 'patch_embed.proj.weight',
        'stem.proj.bias': 'patch_embed.proj.bias',
        'out_norms.1.weight': 'norm.weight',
        'out_norms.1.bias': 'norm.bias',
    }
    taken = {ours: theirs[renamed.get(ours, ours)] for ours in report.matched[1:]}
    taken['stem.pos_embed'] = theirs['pos_embed'][:, count:]
    assert report.matched[0] == 'stem.pos_embed' and not report.resized
    for ours, value in (taken | {name: fresh[name] for name in report.missing}).items():
        assert torch.equal(own[ours], value), ours
    assert {name.split('.attn.')[1].split('.')[0] for name in report.missing} == {
        *('w1_q', 'w2_q', 'w1_k', 'w2_k', 'local', 'gate')
    }
    assert sum(report.sizes.values()) == sum(p.numel() for p in model.parameters())
    assert set(report.matched) | set(report.missing) == own.keys()
    resized = load_weights(larger, theirs).resized
    assert resized == {'stem.pos_embed': ((1, 16, 192), (1, 36, 192))}


@pytest.mark.parametrize('expand', [1, 2])
def test_interaction_is_equation_5_of_each_pair_of_tokens(expand):
    torch.manual_seed(0)
    layer, x = InteractiveSelfAttention(24, 3, expand), randn(2, 7, 5, 24)
    reset_mixing_weights(layer.w1, layer.w2, std=1.0)  # heads are far from independent
    torch.nn.init.normal_(layer.qkv.weight, std=0.3)
    layer.double()
    w = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    for image, out in zip(x.flatten(1, 2).numpy(), layer(x).flatten(1, 2), strict=True):
        q, k, v = np.split(image @ w['qkv.weight'].T + w['qkv.bias'], 3, axis=1)
        scores = [
            q[:, 8 * m : 8 * m + 8] @ k[:, 8 * m : 8 * m + 8].T / 8**0.5
            for m in range(3)
        ]
        mixed = []
        for row in w['w1']:
            exp = np.exp(sum(row[m] * scores[m] for m in range(3)))
            mixed.append(exp / exp.sum(1, keepdims=True))
        heads = [
            sum(row[e] * mixed[e] for e in range(3 * expand)) @ v[:, 8 * m : 8 * m + 8]
            for m, row in enumerate(w['w2'])
        ]
        expected = np.concatenate(heads, 1) @ w['proj.weight'].T + w['proj.bias']
        assert_close(out, torch.from_numpy(expected))


def test_weights_of_dense_attention_are_those_of_masked():
    """The same function without masks, and where a map is inside the stencil."""
    dense = build()
    for block in dense.blocks:
        torch.nn.init.normal_(block.attn.qkv.weight, std=0.3)
    no_masks, masks = (
        build(attention='masked', masking=masking) for masking in ('none', [3, (0, 2)])
    )
    for model in (no_masks, masks):
        model.load_state_dict(dense.state_dict(), strict=True)
    x, small = torch.randn(2, 3, 64, 80), torch.randn(2, 3, 32, 32)
    assert_close(no_masks(x), dense(x))
    assert_close(masks(small), dense(small))
    assert (masks(x)[0] - dense(x)[0]).abs().max() > 0.01


def test_masks_lie_on_the_map():
    attention = build(attention='masked', masking=[3, 3]).blocks[0].attn
    torch.nn.init.normal_(attention.qkv.weight, std=0.3)
    x = torch.randn(2, 7, 4, 48)
    expected = attention(x.flatten(1, 2), (7, 4))
    assert_close(attention(x).flatten(1, 2), expected)


test_wrong_settings = refuses(
    build,
    (dict(attention='linear'), "'linear'"),
    (dict(attention='mhsa_interaction', interact_expand=None), 'expand .* got None'),
    (dict(backend='reference'), "'mhsa' has no .* got 'reference'"),
)
