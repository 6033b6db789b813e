"""MaiT: DeiT's parameters and outputs, masks, tokens, position embedding, heads."""

import pytest
import torch
from layer_checks import randn
from refusals import refuses
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from mmattn.models import MaiT
from mmattn.models.layers import MaskedAttention

SHALLOW = dict(embed_dims=48, depth=2, num_heads=3)


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return MaiT(arch, **{'img_size': 64, **kwargs}).eval()


def image(*size):
    return randn(2, 3, *size, dtype=torch.float32)


def timms(distilled=False, **kwargs):
    """timm's network with random weights, large ones so that all of them matter."""
    torch.manual_seed(0)
    kind = VisionTransformerDistilled if distilled else VisionTransformer
    arch = dict(embed_dim=48, depth=2, num_heads=3)
    model = kind(img_size=64, num_classes=7, **arch, **kwargs)
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


def test_options_reach_the_attention():
    settings = dict(kernel_size=5, mask_fill='neg_inf', backend='reference')
    with torch.device('meta'):
        model = MaiT(masking='sch2', distilled=True, **settings)
    layers = [m for m in model.modules() if isinstance(m, MaskedAttention)]
    masked = [len(layer.masked_heads) for layer in layers]
    assert masked == [2] * 8 + [1] * 12 + [0] * 4
    for layer in layers:
        assert settings == {name: getattr(layer, name) for name in settings}
        assert layer.num_special == 2


def test_position_embedding_is_resized_on_load_as_at_run_time():
    model, larger = (build(distilled=True, img_size=size) for size in (64, (96, 110)))
    larger.load_state_dict(model.state_dict())
    assert_close(larger(image(96, 112)), model(image(96, 112)))


@pytest.mark.parametrize('num_tokens', [16, 18])
def test_position_embedding_of_an_unknown_grid_is_refused(num_tokens):
    weights = build().state_dict()
    weights['stem.pos_embed'] = torch.zeros(1, num_tokens, 48)
    with pytest.raises(RuntimeError, match='pos_embed'):
        build().load_state_dict(weights)


@pytest.mark.parametrize(
    'distilled, out_indices', [(False, -1), (True, 0), (True, (0, 1))], ids=str
)
def test_every_parameter_learns_from_the_tokens(distilled, out_indices):
    settings = dict(masking='soft', out_type='cls_token', layer_scale=1.0)
    model = build(distilled=distilled, out_indices=out_indices, **settings)
    outs = tree_leaves(model(image(33, 47)))
    assert all(out.shape == (2, 48) for out in outs)
    assert len(outs) == len(model.out_indices) * model.stem.num_special
    sum((out * randn(2, 48)).sum() for out in outs).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), name


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
