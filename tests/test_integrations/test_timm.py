"""Our models through timm's registry."""

import sys
from functools import partial
from importlib import import_module

import pytest
import timm
import torch
from refusals import refuses
from timm.models import save_for_hf
from timm.models._features import FeatureGetterNet
from timm.optim import create_optimizer_v2
from torch.testing import assert_close

from mmattn.integrations import timm as entry_points
from mmattn.models import PVT, PooledClassifier, PVTv2, backbones
from mmattn.models.presets import all_presets
from mmattn.weights import names as published
from mmattn.weights.layouts.pvt import to_official_state_dict

# The first preset of each family.
NAMES = {
    cls: name
    for name, (cls, arch) in all_presets().items()
    if arch == next(iter(cls.arch_zoo))
}
every_family = pytest.mark.parametrize('name', NAMES.values())


def build(name, **kwargs):
    if name.startswith('mait_'):
        kwargs = dict(depth=3) | kwargs
    torch.manual_seed(0)
    return timm.create_model(f'mmattn_{name}', **kwargs)


def image(batch=1, channels=3, side=64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, channels, side, side, generator=generator)


def test_each_preset_is_a_model_of_timm():
    assert set(timm.list_models('mmattn_*')) == {f'mmattn_{n}' for n in all_presets()}
    assert len(NAMES) == len(backbones.__all__)
    assert entry_points.mmattn_ivit_nano is timm.model_entrypoint('mmattn_ivit_nano')


@every_family
def test_parts_have_the_names_of_the_default_cfg(name):
    with torch.device('meta'):
        model = build(name)
        features = model.forward_features(torch.empty(1, 3, 224, 224))
    cfg = model.default_cfg
    assert model.get_submodule(cfg['first_conv']).in_channels == 3
    assert model.get_submodule(cfg['classifier']).out_features == 1000
    assert features.shape[2:] == cfg['pool_size'] and cfg['architecture'].endswith(name)
    assert features.shape[1] == model.num_features == model.head_hidden_size
    info = timm.models.FeatureInfo(model.feature_info, len(model.feature_info))
    assert info.channels()[-1] == model.num_features


@every_family
def test_a_classifier_trains(name):
    model = build(name, num_classes=5, in_chans=4, drop_path_rate=0.1).train()
    scores = model(image(2, channels=4))
    assert scores.shape == (2, 5)
    scores.square().sum().backward()
    assert all(param.grad is not None for param in model.parameters())


@every_family
def test_features_are_the_maps_of_the_whole_model(name):
    whole, features = build(name).eval(), build(name, features_only=True).eval()
    assert isinstance(features, FeatureGetterNet)
    count = len(whole.feature_info)
    taken = [*range(count)] if count <= 4 else [*range(count - 3, count)]
    unknown = features.model.load_state_dict(whole.state_dict(), strict=False)
    assert not unknown.missing_keys
    maps = features(image())
    final, expected = whole.forward_intermediates(image())
    assert_close(final, whole.forward_features(image()))
    assert_close(maps, [expected[i] for i in taken])
    assert [m.shape[1] for m in maps] == features.feature_info.channels()
    assert [64 // m.shape[3] for m in maps] == features.feature_info.reduction()
    sum(m.sum() for m in maps).backward()
    assert all(param.grad is not None for param in features.parameters())


def test_features_end_at_the_last_index():
    model = build('ivit_nano', features_only=True, out_indices=(0, -2), landmarks=3)
    assert [tuple(m.shape[1:]) for m in model(image())] == [(32, 16, 16), (160, 4, 4)]
    assert len(model.model.backbone.stages) == 3
    assert model.feature_info.reduction() == [4, 16]


@every_family
def test_pruning_keeps_the_maps_below(name):
    model, x = build(name).eval(), image()
    names = [record['module'] for record in model.feature_info]
    modules = [model.get_submodule(module) for module in names]
    assert modules == [*model.backbone.levels]
    (expected,) = model.forward_intermediates(x, [1], intermediates_only=True)
    assert model.prune_intermediate_layers([1], prune_norm=True) == [1]
    final, (pruned,) = model.forward_intermediates(x, [-1])
    assert_close((pruned, model(x)), (expected, final))
    assert len(model.backbone.levels) == 2 and not model.backbone.out_norms


def test_levels_run_with_norms_and_no_further_than_asked():
    model, x = build('ivit_nano').eval(), image()
    final, (last,) = model.forward_intermediates(x, 1, norm=True)
    assert torch.equal(final, last)
    _, (raw,) = model.forward_intermediates(x, 1)
    assert not torch.equal(raw, last)
    early, (first,) = model.forward_intermediates(x, [0], stop_early=True)
    assert torch.equal(early, first)


test_wrong_requests_for_intermediates = refuses(
    partial(build('pvt_v2_b0').forward_intermediates, image()),
    (dict(indices=5), r'indices must be a number in \[1, 4\].*got 5'),
    (dict(indices=[]), 'got'),
    (dict(indices=[4]), r'in \[-4, 3\], got \[4\]'),
    (dict(output_fmt='NLC'), "got 'NLC'"),
)


def test_the_head_is_replaced():
    model = build('pvt_nano', num_classes=7, drop_rate=0.5).eval()
    x = image()
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (1, 256)
    assert_close(model.get_classifier()(pooled), model(x))
    model.reset_classifier(3)
    assert model(x).shape == (1, 3) and model.num_classes == 3
    model.reset_classifier(0)
    assert_close(model(x), pooled)
    model.reset_classifier(5, '')
    assert model(x).shape == (1, 5, 2, 2)
    with pytest.raises(ValueError, match="must be 'avg' or '', got 'max'"):
        model.reset_classifier(5, 'max')


def test_heads_are_initialized_and_follow_the_dtype():
    model = build('ivit_nano', num_classes=7).double()
    assert model.head.weight.std() < 0.03 and not model.head.bias.any()
    model.reset_classifier(4)
    assert model.head.weight.dtype == torch.float64


def test_timms_weights_give_timms_scores(tmp_path):
    source = timm.create_model('pvt_v2_b0').eval()
    path = tmp_path / 'pvt.pth'
    torch.save(source.state_dict(), path)
    options = dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(path)))
    model = build('pvt_v2_b0', **options).eval()
    assert_close(model(image()), source(image()), rtol=1e-4, atol=1e-5)
    gray = build('pvt_v2_b0', in_chans=1, num_classes=9, **options).eval()
    x = image(channels=1)
    expected = source.forward_features(x.expand(-1, 3, -1, -1))
    assert_close(gray.forward_features(x), expected, rtol=1e-3, atol=1e-4)


def test_weights_of_mmpretrains_classifiers_fit():
    model = build('hmait_nano', num_classes=5)
    weights = model.state_dict()
    theirs = {name.replace('head.', 'head.fc.'): v for name, v in weights.items()}
    theirs['neck.weight'] = torch.ones(1)
    assert entry_points.filter_weights(theirs, model).keys() == weights.keys()
    alone = model.backbone.state_dict()
    filtered = entry_points.filter_weights(alone, model)
    assert filtered.keys() == {n for n in weights if n.startswith('backbone.')}


@pytest.fixture
def published_pvt(serve, tmp_path, monkeypatch):
    """A classifier with the weights in the file of `pvt_v2_b0`, and a file of PVT."""
    torch.manual_seed(2)
    source = PooledClassifier(PVTv2('b0', out_indices=-1)).eval()
    token = PVT('nano', out_indices=-1, out_type='cls_token')
    known = {}
    url, _ = serve(tmp_path)
    for name, backbone in {'pvt_v2_b0': source.backbone, 'pvt_nano': token}.items():
        weights = to_official_state_dict(backbone.state_dict())
        weights |= source.head.state_dict(prefix='head.')
        torch.save(weights, tmp_path / name)
        known[name] = dict(url=f'{url}/{name}')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    for module in (published, entry_points):
        monkeypatch.setattr(module, 'published_files', lambda: known)
    return source


def test_pretrained_loads_the_published_file(published_pvt):
    listed = timm.list_pretrained('mmattn_*')
    assert {'mmattn_pvt_v2_b2', 'mmattn_dat_plus_plus_tiny'} < {*listed}
    assert not any('ivit' in name for name in listed)
    model = build('pvt_v2_b0', pretrained=True).eval()
    assert_close(model(image()), published_pvt(image()))
    assert 'state_dict' not in model.pretrained_cfg
    other = build('pvt_v2_b0', pretrained=True, num_classes=7, in_chans=4).eval()
    assert other(image(channels=4)).shape == (1, 7)
    name = 'backbone.stages.3.norm.weight'
    maps = build('pvt_v2_b0', pretrained=True, features_only=True).eval()
    assert 'state_dict' not in maps.pretrained_cfg
    for loaded in (other, maps.model):
        assert_close(loaded.state_dict()[name], published_pvt.state_dict()[name])
    whole = dict(pretrained_cfg_overlay=dict(state_dict=published_pvt.state_dict()))
    given = build('pvt_v2_b0', pretrained=True, **whole).eval()
    assert_close(given(image()), published_pvt(image()))


def test_pretrained_without_a_file_that_fits(published_pvt):
    with pytest.raises(ValueError, match='published for mmattn_ivit_nano. `mmattn w'):
        build('ivit_nano', pretrained=True)
    with pytest.raises(ValueError, match='the file of pvt_nano reads a class token'):
        build('pvt_nano', pretrained=True)
    build('pvt_nano', pretrained=True, num_classes=5)
    build('pvt_nano', pretrained=True, features_only=True)


def test_a_saved_model_is_built_again(tmp_path):
    model = build('hmait_nano', num_classes=3, in_chans=4).eval()
    save_for_hf(model, tmp_path, safe_serialization=True)
    again = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
    x = image(channels=4)
    assert_close(again(x), model(x))


def test_layers_have_their_learning_rates():
    model = build('lisanet_hybrid_nano', num_classes=3)
    optimizer = create_optimizer_v2(model, 'adamw', weight_decay=0.1, layer_decay=0.5)
    names = {param: name for name, param in model.named_parameters()}
    groups = {names[p]: g for g in optimizer.param_groups for p in g['params']}
    scales = {name: group['lr_scale'] for name, group in groups.items()}
    decays = {name: group['weight_decay'] for name, group in groups.items()}
    assert scales['head.weight'] == 1
    blocks = 2 + 2 + 6 + 2
    assert scales['backbone.stem.proj.weight'] == 0.5 ** (blocks + 1)
    assert scales['backbone.stages.1.blocks.0.norm1.weight'] == 0.5 ** (blocks - 2)
    assert decays['head.weight'] == 0.1 and decays['head.bias'] == 0
    coarse = model.group_matcher(coarse=True)
    assert coarse('backbone.stages.1.blocks.0.norm1.weight') == 2
    assert coarse('head.weight') == 5 and coarse('backbone.stem.proj.weight') == 0


def test_tokens_and_positions_do_not_decay():
    model = build('mait_xtiny')
    names = {'backbone.stem.cls_token', 'backbone.stem.pos_embed'}
    assert model.no_weight_decay() == names


def test_activations_are_recomputed():
    model = build('mait_xtiny')
    assert not model.backbone.with_cp
    model.set_grad_checkpointing()
    assert model.backbone.with_cp
    with pytest.raises(ValueError, match='MaiT: images must have shape'):
        model.forward_intermediates(image()[0])


def test_without_timm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm.data', None)
    monkeypatch.delitem(sys.modules, 'mmattn.integrations.timm')
    with pytest.raises(ImportError, match='requires timm.*pip install "timm>='):
        import_module('mmattn.integrations.timm')


def test_a_model_is_built_on_a_device_and_in_a_dtype():
    model = timm.create_model('mmattn_ivit_nano', device='meta', dtype=torch.bfloat16)
    built = {(x.device.type, x.dtype) for x in model.parameters()}
    assert built == {('meta', torch.bfloat16)}
