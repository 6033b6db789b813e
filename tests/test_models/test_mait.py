"""MaiT: DeiT's parameters and outputs, masks, tokens, position embedding, heads."""

import pytest
import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.testing import assert_close

from mmattn.models import MaiT
from mmattn.models.layers import DropPath, undecayed_names
from mmattn.models.layers.patches import resize_pos_embed

SHALLOW = dict(embed_dims=48, depth=2, num_heads=3)
PARAMETERS = {  # with a linear classifier of 1000 classes, without and with LayerScale
    'xtiny': (6_301_432, 6_308_344),
    'tiny': (11_055_784, 11_065_000),
    'xsmall': (24_545_800, 24_559_624),
    'small': (43_344_232, 43_362_664),
}
MILLIONS_OF_12_LAYERS = dict(xtiny=3.293, tiny=5.717, xsmall=12.557, small=22.051)
DEITS = {
    'plain': ('deit_tiny_patch16_224', dict(arch='tiny')),
    'distilled': (
        'deit_tiny_distilled_patch16_224',
        dict(arch='tiny', distilled=True),
    ),
    'small': ('deit_small_patch16_224', dict(arch='small')),
}

distilled_or_not = pytest.mark.parametrize(
    'distilled', [False, True], ids=['plain', 'distilled']
)


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return MaiT(arch, **{'img_size': 64, **kwargs}).eval()


def image(*size, batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


def classifier_parameters(arch, **kwargs):
    with torch.device('meta'):
        model = MaiT(arch, **kwargs)
    C = model.stem.pos_embed.shape[-1]
    tokens = 2 if kwargs.get('distilled') else 1
    return sum(p.numel() for p in model.parameters()) + tokens * (C + 1) * 1000


def timms(distilled=False, **kwargs):
    """timm's network with random weights, large ones so that all of them matter."""
    torch.manual_seed(0)
    model = (VisionTransformerDistilled if distilled else VisionTransformer)(
        img_size=64, embed_dim=48, depth=2, num_heads=3, num_classes=7, **kwargs
    )
    for name, param in model.named_parameters():
        nn.init.normal_(param, mean=float(name.endswith('norm1.weight')), std=0.2)
    return model.eval()


def without_head(model):
    weights = model.state_dict()
    return {name: weights[name] for name in weights if not name.startswith('head')}


@pytest.mark.parametrize('arch', PARAMETERS)
def test_parameters(arch):
    plain, scaled = PARAMETERS[arch]
    assert classifier_parameters(arch) == plain
    assert classifier_parameters(arch, layer_scale=1e-5) == scaled
    millions = classifier_parameters(arch, depth=12) / 1e6
    assert round(millions, 3) == MILLIONS_OF_12_LAYERS[arch]
    assert classifier_parameters(arch, num_heads=12, masking='sch2') == plain


def test_parameters_of_tokens_and_soft_masks():
    assert classifier_parameters('xtiny', distilled=True) == 6_446_720
    alphas = classifier_parameters('tiny', masking='soft') - PARAMETERS['tiny'][0]
    assert alphas == 63, '21 layers of 3 heads'


@pytest.mark.parametrize('name, kwargs', DEITS.values(), ids=DEITS)
def test_weights_of_deit_load_unchanged(name, kwargs):
    theirs = timm.create_model(name).eval()
    model = MaiT(depth=12, masking='none', out_type='cls_token', **kwargs).eval()
    model.load_state_dict(without_head(theirs), strict=True)
    x = image(224, 224, batch=1)
    with torch.no_grad():
        (out,) = model(x)
        tokens = theirs.forward_features(x)
    out = torch.stack(out, 1) if model.stem.num_special == 2 else out[:, None]
    assert_close(out, tokens[:, : model.stem.num_special])


@pytest.mark.parametrize('layer_scale', [None, 0.1])
@distilled_or_not
def test_equals_timm_without_masks(distilled, layer_scale):
    theirs = timms(distilled, init_values=layer_scale)
    settings = dict(masking='none', distilled=distilled, layer_scale=layer_scale)
    x = image(64, 64)
    expected = theirs.forward_features(x)
    for out_type in ('featmap', 'cls_token'):
        model = build(out_type=out_type, **settings)
        model.load_state_dict(without_head(theirs), strict=True)
        (out,) = model(x)
        if out_type == 'featmap':
            patches = expected[:, model.stem.num_special :]
            assert_close(out, patches.transpose(1, 2).unflatten(2, (4, 4)))
        else:
            out = out if distilled else (out,)
            assert_close(out, tuple(expected[:, : model.stem.num_special].unbind(1)))


@distilled_or_not
def test_masks_need_no_other_weights(distilled):
    """They change what is computed, unless the map is inside the stencil."""
    settings = dict(distilled=distilled, out_type='cls_token')
    plain, masked = (build(masking=m, **settings) for m in ('none', [3, 3]))
    for model in (plain, masked):
        model.load_state_dict(without_head(timms(distilled)), strict=True)
    small, large = (
        [tokens_of(model, image(side, side)) for model in (masked, plain)]
        for side in (32, 64)
    )
    assert_close(*small)
    assert (large[0] - large[1]).abs().amax((0, 2)).min() > 0.01, 'of each token'


def tokens_of(model, x):
    (out,) = model(x)
    return torch.stack(out, 1) if model.stem.num_special == 2 else out[:, None]


@pytest.mark.parametrize(
    'masking, expected',
    [
        ('none', [()] * 24),
        ('sch1', [(0,)] * 24),
        ('sch2', [(0, 1)] * 8 + [(0,)] * 12 + [()] * 4),
        ('soft', [(0, 1, 2)] * 21 + [()] * 3),
        ([(2,), 2] * 12, [(2,), (0, 1)] * 12),
    ],
    ids=['none', 'sch1', 'sch2', 'soft', 'list'],
)
def test_blocks_are_masked_as_asked(masking, expected):
    settings = dict(kernel_size=5, distilled=True)
    with torch.device('meta'):
        layers = [block.attn for block in MaiT(masking=masking, **settings).blocks]
    assert [layer.masked_heads for layer in layers] == expected
    for layer in layers:
        soft = masking == 'soft' and layer.masked_heads
        assert (layer.alpha_logit is not None) == bool(soft)
        assert layer.kernel_size == 5 and layer.num_special == 2


@pytest.mark.parametrize('alpha', [{}, {'alpha_init': 0.9}], ids=str)
def test_soft_masks_of_a_list_start_where_asked(alpha):
    masking = ['soft', dict(heads=(2,), soft=True), 1, 0]
    layers = [b.attn for b in build(masking=masking, depth=4, **alpha).blocks]
    assert [a.masked_heads for a in layers] == [(0, 1, 2), (2,), (0,), ()]
    for layer, count in zip(layers, (3, 1), strict=False):
        expected = torch.full((count,), alpha.get('alpha_init', 0.5))
        assert_close(layer.alpha.float(), expected)
    assert [a.alpha_logit is None for a in layers] == [False, False, True, True]


def test_mask_fill_and_backend_reach_the_operator():
    settings = dict(masking=[3, 3], out_type='cls_token')
    zero, neg_inf = (build(mask_fill=fill, **settings) for fill in ('zero', 'neg_inf'))
    x = image(64, 64)
    assert (zero(x)[0] - neg_inf(x)[0]).abs().max() > 1e-3
    with pytest.raises(ValueError, match="'fpga'"):
        build(backend='fpga')(x)


@distilled_or_not
def test_position_embedding_is_resized_on_load_as_at_run_time(distilled):
    model, larger = (
        build(distilled=distilled, img_size=size) for size in (64, (96, 110))
    )
    weights = model.state_dict()
    larger.load_state_dict(weights)
    special = model.stem.num_special
    assert weights['stem.pos_embed'].shape[1] == special + 16, (
        'the source is left alone'
    )
    assert larger.stem.pos_embed.shape[1] == special + 6 * 7
    for part, expected in (
        (larger.stem.pos_embed[:, :special], weights['stem.pos_embed'][:, :special]),
        (
            larger.stem.pos_embed[:, special:],
            resize_pos_embed(weights['stem.pos_embed'][:, special:], (4, 4), (6, 7)),
        ),
    ):
        assert_close(part.data, expected)
    assert_close(larger(image(96, 112)), model(image(96, 112)))


@pytest.mark.parametrize('num_tokens', [1, 16, 18, 197 + 1])
def test_position_embedding_of_an_unknown_grid_is_refused(num_tokens):
    """For example one for two special tokens, where there is one."""
    weights = build().state_dict()
    weights['stem.pos_embed'] = torch.zeros(1, num_tokens, 48)
    with pytest.raises(RuntimeError, match='pos_embed'):
        build().load_state_dict(weights)


@pytest.mark.parametrize('size', [(64, 64), (33, 47), (1, 1)], ids=str)
@pytest.mark.parametrize('out_indices', [-1, 0, (0, 1)], ids=str)
@distilled_or_not
def test_every_parameter_learns_from_the_tokens(distilled, out_indices, size):
    model = build(
        masking='soft', distilled=distilled, out_type='cls_token', layer_scale=1.0,
        out_indices=out_indices,
    )  # fmt: skip
    outs = flatten(model(image(*size)))
    assert all(out.shape == (2, 48) for out in outs)
    assert len(outs) == len(model.out_indices) * model.stem.num_special
    sum((out * image(16)[:, 0].repeat(1, 3)).sum() for out in outs).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name


def flatten(outs):
    return [x for out in outs for x in (out if isinstance(out, tuple) else (out,))]


def test_norms_of_what_is_returned():
    """DeiT's for the last one; each of the others has its own."""
    model = build(out_indices=(0, 1))
    assert set(model.out_norms) == {'0', '1'}
    nn.init.constant_(model.out_norms['0'].bias, 1.0)
    nn.init.constant_(model.out_norms['1'].bias, 2.0)
    means = [out.mean((1, 2, 3)) for out in model(image(64, 64))]
    assert_close(means, [torch.full((2,), value) for value in (1.0, 2.0)])
    weights, cut = without_head(timms()), build(out_indices=0)
    cut.load_state_dict(weights, strict=False)
    assert_close(cut.out_norms['0'].weight.data, weights['norm.weight'])


def test_blocks_above_the_last_returned_one_are_not_built():
    assert len(build(out_indices=0).blocks) == 1


@pytest.mark.parametrize(
    'schedule, expected', [('linear', [0, 0.1, 0.2]), ('constant', [0.2] * 3)]
)
def test_drop_path_schedules(schedule, expected):
    model = build(
        dict(SHALLOW, depth=3), drop_path_rate=0.2, drop_path_schedule=schedule
    )
    rates = [m.drop_prob for m in model.modules() if isinstance(m, DropPath)]
    assert rates == pytest.approx(expected)


def test_layer_scale_starts_as_asked():
    model = build(layer_scale=1e-5)
    for block in model.blocks:
        for scale in (block.ls1, block.ls2):
            assert_close(scale.gamma.data, torch.full((48,), 1e-5))


def test_stem_and_tokens_are_frozen_together():
    model = build(distilled=True, frozen_stages=0)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {
        'stem.cls_token',
        'stem.dist_token',
        'stem.pos_embed',
        'stem.proj.weight',
        'stem.proj.bias',
    }
    assert all(model.get_layer_depth(name) == (0, 4) for name in frozen)
    assert model.get_layer_depth('blocks.1.attn') == (2, 4)
    assert model.get_layer_depth('out_norms.1.weight') == (3, 4)


def test_what_does_not_decay():
    model = build(masking='soft', distilled=True)
    tokens = {f'stem.{name}' for name in ('cls_token', 'dist_token', 'pos_embed')}
    logits = {f'blocks.{i}.attn.alpha_logit' for i in range(2)}
    assert undecayed_names(model) == tokens | logits


def head(kind, **kwargs):
    pytest.importorskip('mmpretrain')
    from mmpretrain.registry import MODELS

    return MODELS.build(dict(type=kind, num_classes=7, in_channels=48, **kwargs)).eval()


@pytest.mark.parametrize('kind, name', [
    ('LinearClsHead', 'fc'), ('VisionTransformerClsHead', 'layers.head'),
])  # fmt: skip
def test_heads_of_mmpretrain_classify_the_class_token(kind, name):
    theirs, classifier = timms(), head(kind)
    model = build(masking='none', out_type='cls_token')
    model.load_state_dict(without_head(theirs))
    classifier.get_submodule(name).load_state_dict(theirs.head.state_dict())
    x = image(64, 64)
    assert_close(classifier(model(x)), theirs(x))


def test_head_of_deit_classifies_both_tokens():
    theirs, classifier = timms(distilled=True), head('DeiTClsHead')
    model = build(masking='none', distilled=True, out_type='cls_token')
    model.load_state_dict(without_head(theirs))
    for name in ('head', 'head_dist'):
        layer = getattr(classifier.layers, name)
        layer.load_state_dict(getattr(theirs, name).state_dict())
    x = image(64, 64)
    assert_close(classifier(model(x)), theirs(x))


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(out_type='raw'), "'raw'"),
        (dict(masking='sch3'), "'sch3'"),
        (dict(masking=[1]), 'each of 2 layers, got 1'),
        (dict(drop_path_schedule='cosine'), "'cosine'"),
        (dict(num_heads=5), '48 channels do not split into 5'),
        (dict(kernel_size=2), 'got 2'),
        (dict(masking='soft', mask_fill='neg_inf'), "'neg_inf'"),
        (dict(masking=[1, 'soft'], mask_fill='neg_inf'), "'neg_inf'"),
        (dict(masking=[1, 'soft'], random_mask_seed=0), 'soft=True'),
        (dict(masking='soft', alpha_init=1), 'between 0 and 1.*got 1'),
    ],
    ids=str,
)
def test_wrong_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)
