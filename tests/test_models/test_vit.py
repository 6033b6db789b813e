"""ViT: against timm's, its position embedding, patches, padding, its attentions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch.func import functional_call
from torch.testing import assert_close

from mmattn.models import ViT
from mmattn.models.backbones.vit import InteractiveSelfAttention, SelfAttention
from mmattn.models.layers import pos_embed_map, undecayed_names
from mmattn.models.layers.interactive_attention import reset_mixing_weights

SHALLOW = dict(embed_dims=48, depth=2, num_heads=3)


def build(**kwargs):
    torch.manual_seed(0)
    return ViT(**{'arch': SHALLOW, 'attention': 'mhsa', **kwargs}).eval()


@pytest.mark.parametrize('patch_size', [8, 16])
def test_equals_timm(patch_size):
    """With dense attention it is timm's network without class token."""
    model = build(patch_size=patch_size, img_size=64).double()
    theirs = VisionTransformer(
        img_size=64,
        patch_size=patch_size,
        embed_dim=48,
        depth=2,
        num_heads=3,
        num_classes=0,
        class_token=False,
        global_pool='',
    )
    names = {
        'stem.proj.': 'patch_embed.proj.',
        'stem.pos_embed': 'pos_embed',
        'out_norms.1.': 'norm.',
    }
    weights = {}
    for name, value in model.state_dict().items():
        for ours, their in names.items():
            name = name.replace(ours, their)
        weights[name] = value
    theirs.load_state_dict(weights)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    (out,) = model(x)
    assert_close(out.flatten(2).transpose(1, 2), theirs.double().eval()(x))


@pytest.mark.parametrize('grid', [(7, 5), (1, 1), (9, 7)], ids=str)
def test_dense_attention_is_softmax_attention(grid):
    torch.manual_seed(0)
    attention = SelfAttention(48, 3).double()
    x = torch.randn(2, *grid, 48, dtype=torch.float64)
    qkv = attention.qkv(x.flatten(1, 2))
    heads = []
    for head in range(3):
        q, k, v = (part[..., 16 * head : 16 * head + 16] for part in qkv.chunk(3, -1))
        heads.append((q @ k.mT / 16**0.5).softmax(-1) @ v)
    expected = attention.proj(torch.cat(heads, -1)).unflatten(1, grid)
    assert_close(attention(x), expected)


def interaction(expand=1, std=1.0, embed_dims=24):
    """Return a layer of equation 5 whose heads are far from independent."""
    torch.manual_seed(0)
    layer = InteractiveSelfAttention(embed_dims, 3, expand)
    reset_mixing_weights(layer.w1, layer.w2, std)
    torch.nn.init.normal_(layer.qkv.weight, std=0.3)
    return layer.double()


def tokens(*grid):
    torch.manual_seed(1)
    return torch.randn(2, *grid, 24, dtype=torch.float64)


@pytest.mark.parametrize('expand', [1, 2])
@pytest.mark.parametrize('grid', [(7, 5), (1, 1)], ids=str)
def test_interaction_is_equation_5_of_each_pair_of_tokens(expand, grid):
    layer, x = interaction(expand), tokens(*grid)
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


def test_interaction_is_a_sum_of_attentions_with_all_channels():
    """Both mixings fold into queries and values, so no step crosses heads."""
    layer, x = interaction(expand=2), tokens(4, 6)
    q, k, v = layer.qkv(x.flatten(1, 2)).chunk(3, -1)
    w1, w2 = (w.repeat_interleave(8, 1) for w in (layer.w1, layer.w2.T))
    out = sum(
        F.scaled_dot_product_attention(q * w1[e], k, v * w2[e], scale=8**-0.5)
        for e in range(6)
    )
    assert_close(layer(x), layer.proj(out).view_as(x))


def test_weight_decay_leaves_the_interaction_alone():
    backbone = ViT('tiny', attention='mhsa_interaction')
    mixing = {
        name for name, _ in backbone.named_parameters() if name.endswith(('.w1', '.w2'))
    }
    assert len(mixing) == 24 and mixing <= set(undecayed_names(backbone))


def test_gradients_of_interaction():
    layer = interaction(embed_dims=6)
    x = tokens(2, 3)[:1, ..., :6].clone().requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *parameters))


@pytest.mark.parametrize('expand', [1, 3])
def test_interaction_without_noise_is_dense_attention(expand):
    layer, plain = interaction(expand, std=0), SelfAttention(24, 3).double()
    missing, unexpected = plain.load_state_dict(layer.state_dict(), strict=False)
    assert not missing and set(unexpected) == {'w1', 'w2'}
    assert_close(layer(tokens(4, 6)), plain(tokens(4, 6)))


def test_noise_parts_the_copies_of_an_interacting_head():
    layer = interaction(expand=2, std=0.02)
    layer(tokens(4, 6)).square().mean().backward()
    for weight, dim in ((layer.w1, 0), (layer.w2, 1)):
        first, second = weight.grad.chunk(2, dim)
        assert not torch.allclose(first, second)


@pytest.mark.slow
def test_interaction_in_one_graph():
    layer, x = interaction(), tokens(3, 4)
    compiled = torch.compile(layer, backend='eager', fullgraph=True)
    assert_close(compiled(x), layer(x))
    assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


@pytest.mark.parametrize('expand', [None, 0])
def test_dense_interaction_needs_mixed_heads(expand):
    with pytest.raises(ValueError, match=f'interact_expand .* got {expand}'):
        build(attention='mhsa_interaction', interact_expand=expand)


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


def test_masks_of_each_block():
    arch = dict(SHALLOW, depth=12)
    settings = dict(attention='masked', kernel_size=5, mask_fill='neg_inf')
    layers = [
        block.attn for block in build(arch=arch, masking='sch2', **settings).blocks
    ]
    counts = [len(layer.masked_heads) for layer in layers]
    assert counts == [2] * 4 + [1] * 6 + [0] * 2
    for layer in layers:
        assert (layer.kernel_size, layer.mask_fill) == (5, 'neg_inf')
        assert layer.num_special == 0 and layer.alpha_logit is None
    soft = build(arch=arch, attention='masked', masking='soft').blocks
    logits = [block.attn.alpha_logit for block in soft]
    assert [logit is None for logit in logits] == [False] * 11 + [True]
    mixed = build(
        arch=arch, attention='masked', masking=['soft'] * 6 + [1] * 6, alpha_init=0.25
    ).blocks
    alphas = [block.attn.alpha for block in mixed]
    assert [alpha is None for alpha in alphas] == [False] * 6 + [True] * 6
    assert_close(torch.stack(alphas[:6]), torch.full((6, 3), 0.25))


@pytest.mark.parametrize('attention', ['mhsa', 'mhsa_interaction', 'imhsa', 'masked'])
@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('shape', [(33, 47), (32, 48), (5, 70)], ids=str)
def test_images_are_padded_right_and_below(attention, patch_size, shape):
    model = build(attention=attention, patch_size=patch_size)
    x = torch.randn(1, 3, *shape)
    height, width = (-(-side // patch_size) * patch_size for side in shape)
    padded = F.pad(x, (0, width - shape[1], 0, height - shape[0]))
    (out,) = model(x)
    assert out.shape[-2:] == (height // patch_size, width // patch_size)
    assert_close(out, model(padded)[0])


def on_grid(model, grid):
    return pos_embed_map(model.stem.pos_embed, model.stem.grid_size, grid)


def test_position_embedding_is_added_as_it_is_at_its_own_size():
    model = build(img_size=(48, 80))
    assert model.stem.pos_embed.shape == (1, 3 * 5, 48)
    assert on_grid(model, (3, 5)).shape == (1, 3, 5, 48)
    assert_close(on_grid(model, (3, 5)).flatten(1, 2), model.stem.pos_embed)


def test_position_embedding_keeps_its_axes_when_resized():
    """One that grows from top to bottom alone still does so."""
    model = build(img_size=64)
    rows = torch.arange(4.0).repeat_interleave(4)[None, :, None].expand(1, 16, 48)
    model.stem.pos_embed.data.copy_(rows)
    resized = on_grid(model, (8, 6))[0]  # (8, 6, 48)
    assert_close(resized, resized[:, :1, :1].expand_as(resized))
    assert (resized[1:, 0, 0] > resized[:-1, 0, 0]).all()


@pytest.mark.parametrize('attention', ['mhsa', 'imhsa'])
def test_position_embedding_is_resized_on_load_as_at_run_time(attention):
    model = build(attention=attention, img_size=64)
    larger = build(attention=attention, img_size=(96, 112))
    weights = model.state_dict()
    larger.load_state_dict(weights)
    assert weights['stem.pos_embed'].shape == (1, 16, 48), 'the source is left alone'
    assert larger.stem.pos_embed.shape == (1, 6 * 7, 48)
    x = torch.randn(1, 3, 96, 112)
    assert_close(larger(x), model(x))


def test_position_embedding_is_resized_bicubically():
    table = torch.randn(1, 4 * 4, 8)
    image = table.view(1, 4, 4, 8).permute(0, 3, 1, 2)
    expected = F.interpolate(image, (7, 5), mode='bicubic').permute(0, 2, 3, 1)
    assert_close(pos_embed_map(table, (4, 4), (7, 5)), expected)


def test_position_embedding_inside_a_detector_is_resized_on_load():
    parent, larger = (
        torch.nn.ModuleDict({'backbone': build(img_size=side)}) for side in (64, 128)
    )
    larger.load_state_dict(parent.state_dict())
    assert_close(
        larger['backbone'].stem.pos_embed,
        on_grid(parent['backbone'], (8, 8)).flatten(1, 2),
    )


def test_position_embedding_of_an_unknown_grid_is_refused():
    weights = build(img_size=64).state_dict()
    weights['stem.pos_embed'] = torch.zeros(1, 15, 48)
    with pytest.raises(RuntimeError, match='pos_embed'):
        build(img_size=64).load_state_dict(weights)


def test_position_embedding_gets_a_gradient_at_any_size():
    model = build(img_size=64)
    for shape in ((64, 64), (33, 47)):
        model.zero_grad()
        model(torch.randn(1, 3, *shape))[0].square().mean().backward()
        assert model.stem.pos_embed.grad.abs().sum() > 0


def test_each_returned_map_has_its_own_norm():
    model = build(out_indices=(0, -1))
    assert set(model.out_norms) == {'0', '1'}
    outs = model(torch.randn(1, 3, 64, 64))
    for out in outs:
        assert_close(out.mean(1), torch.zeros(1, 4, 4), atol=1e-5, rtol=0)


def test_options_reach_interactive_attention():
    options = dict(landmarks=3, interact_expand=1, local_kernel=None, gate=False)
    for block in build(attention='imhsa', backend='torch', **options).blocks:
        attention = block.attn
        assert (attention.landmarks, attention.backend) == (3, 'torch')
        assert attention.w1_q.shape == (3, 3)  # heads
        assert attention.local is None and attention.gate is None


def test_options_reach_masked_attention():
    options = dict(masking=[2, 1], kernel_size=5, mask_fill='neg_inf')
    blocks = build(attention='masked', backend='reference', **options).blocks
    assert [block.attn.masked_heads for block in blocks] == [(0, 1), (0,)]
    for attention in (block.attn for block in blocks):
        assert (attention.kernel_size, attention.mask_fill) == (5, 'neg_inf')
        assert attention.backend == 'reference'


def test_unknown_attention():
    with pytest.raises(ValueError, match="'linear'"):
        ViT(attention='linear')


@pytest.mark.parametrize('attention', ['mhsa', 'mhsa_interaction'])
def test_dense_attention_has_no_backends(attention):
    with pytest.raises(ValueError, match=f"'{attention}' has no .* got 'reference'"):
        build(attention=attention, backend='reference')
