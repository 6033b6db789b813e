"""MaiT: DeiT's parameters and outputs, masks, tokens, position embedding, heads."""

import pytest
import torch
from refusals import refuses
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.testing import assert_close

from mmattn.models import MaiT
from mmattn.models.layers import MaskedAttention

SHALLOW = dict(embed_dims=48, depth=2, num_heads=3)


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return MaiT(arch, **{'img_size': 64, **kwargs}).eval()


def image(*size, batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


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


@pytest.mark.parametrize('distilled, layer_scale', [(False, None), (True, 0.1)])
def test_equals_timm_without_masks(distilled, layer_scale):
    theirs = timms(distilled, init_values=layer_scale).double()
    settings = dict(masking='none', distilled=distilled, layer_scale=layer_scale)
    x = image(64, 64).double()
    expected = theirs.forward_features(x)
    for out_type in ('featmap', 'cls_token'):
        model = build(out_type=out_type, **settings).double()
        model.load_state_dict(without_head(theirs), strict=True)
        (out,) = model(x)
        if out_type == 'featmap':
            patches = expected[:, model.stem.num_special :]
            assert_close(out, patches.transpose(1, 2).unflatten(2, (4, 4)))
        else:
            out = out if distilled else (out,)
            assert_close(out, tuple(expected[:, : model.stem.num_special].unbind(1)))


def test_masks_need_no_other_weights(distilled=True):
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


def test_options_reach_the_attention():
    with torch.device('meta'):
        model = MaiT(masking='sch2', kernel_size=5, distilled=True)
    layers = [m for m in model.modules() if isinstance(m, MaskedAttention)]
    masked = [len(layer.masked_heads) for layer in layers]
    assert masked == [2] * 8 + [1] * 12 + [0] * 4
    assert {(layer.kernel_size, layer.num_special) for layer in layers} == {(5, 2)}


def test_mask_fill_and_backend_reach_the_operator():
    settings = dict(masking=[3, 3], out_type='cls_token')
    zero, neg_inf = (build(mask_fill=fill, **settings) for fill in ('zero', 'neg_inf'))
    x = image(64, 64)
    assert (zero(x)[0] - neg_inf(x)[0]).abs().max() > 1e-3
    with pytest.raises(ValueError, match="'fpga'"):
        build(backend='fpga')(x)


def test_position_embedding_is_resized_on_load_as_at_run_time():
    model, larger = (build(distilled=True, img_size=size) for size in (64, (96, 110)))
    larger.load_state_dict(model.state_dict())
    assert_close(larger(image(96, 112)), model(image(96, 112)))


@pytest.mark.parametrize('num_tokens', [16, 18])
def test_position_embedding_of_an_unknown_grid_is_refused(num_tokens):
    """For example one for two special tokens, where there is one."""
    weights = build().state_dict()
    weights['stem.pos_embed'] = torch.zeros(1, num_tokens, 48)
    with pytest.raises(RuntimeError, match='pos_embed'):
        build().load_state_dict(weights)


@pytest.mark.parametrize(
    'distilled, out_indices', [(False, -1), (True, 0), (True, (0, 1))], ids=str
)
def test_every_parameter_learns_from_the_tokens(distilled, out_indices):
    model = build(
        masking='soft',
        distilled=distilled,
        out_type='cls_token',
        layer_scale=1.0,
        out_indices=out_indices,
    )
    outs = flatten(model(image(33, 47)))
    assert all(out.shape == (2, 48) for out in outs)
    assert len(outs) == len(model.out_indices) * model.stem.num_special
    sum((out * image(16)[:, 0].repeat(1, 3)).sum() for out in outs).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name


def flatten(outs):
    return [x for out in outs for x in (out if isinstance(out, tuple) else (out,))]


def test_a_network_cut_short_takes_the_norm_of_the_whole():
    weights, cut = without_head(timms()), build(out_indices=0)
    cut.load_state_dict(weights, strict=False)
    assert_close(cut.out_norms['0'].weight.data, weights['norm.weight'])


def test_head_of_deit_classifies_both_tokens():
    from mmpretrain.registry import MODELS

    cfg = dict(type='DeiTClsHead', num_classes=7, in_channels=48)
    theirs, classifier = timms(distilled=True), MODELS.build(cfg).eval()
    model = build(masking='none', distilled=True, out_type='cls_token')
    model.load_state_dict(without_head(theirs))
    for name in ('head', 'head_dist'):
        layer = getattr(classifier.layers, name)
        layer.load_state_dict(getattr(theirs, name).state_dict())
    x = image(64, 64)
    assert_close(classifier(model(x)), theirs(x))


test_wrong_settings = refuses(
    build,
    (dict(out_type='raw'), "'raw'"),
    (dict(masking='sch3'), "'sch3'"),
    (dict(drop_path_schedule='cosine'), "'cosine'"),
    (dict(masking='soft', mask_fill='neg_inf'), "'neg_inf'"),
    (dict(masking=[1, 'soft'], random_mask_seed=0), 'soft=True'),
)
