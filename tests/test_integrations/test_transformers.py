"""Our backbones through transformers' AutoBackbone."""

import json
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip('transformers', '5.23')
from safetensors.torch import load_file, save_file
from transformers import (
    AutoBackbone,
    AutoConfig,
    UperNetConfig,
    UperNetForSemanticSegmentation,
)
from transformers.models.auto import auto_factory

from mmattn import create_model
from mmattn.integrations.transformers import MMAttnBackbone, MMAttnConfig

SETTINGS = {  # MaskedCaiT has buffers that no checkpoint holds
    'ivit_nano': dict(landmarks=3),
    'mait_xtiny': dict(depth=2, masking='soft'),
    'masked_cait_xxs24': dict(masking=[1] * 24),
}
OUT_INDICES = {'ivit_nano': [1, 3], 'mait_xtiny': [0, 2], 'masked_cait_xxs24': [2]}


def build(backbone='ivit_nano', **kwargs):
    settings = dict(settings=SETTINGS[backbone], out_indices=OUT_INDICES[backbone])
    config = MMAttnConfig(backbone=backbone, **(settings | kwargs))
    torch.manual_seed(0)
    return AutoBackbone.from_config(config).eval()


def image(channels=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, channels, 64, 64, generator=generator)


@pytest.mark.parametrize('backbone', SETTINGS)
def test_a_saved_backbone_is_built_again(backbone, tmp_path):
    model = build(backbone, num_channels=4)
    model.save_pretrained(tmp_path)
    assert (tmp_path / 'model.safetensors').is_file()
    again = MMAttnBackbone.from_pretrained(tmp_path).eval()
    x = image(4)
    maps = again(x).feature_maps
    assert_close(maps, model(x).feature_maps)
    assert [m.shape[1] for m in maps] == again.channels
    for key in ('hidden_sizes', 'stage_names', 'out_features', 'num_channels'):
        assert getattr(again.config, key) == getattr(model.config, key)
    saved = json.loads((tmp_path / 'config.json').read_text())
    assert saved['settings'] == SETTINGS[backbone] and saved['model_type'] == 'mmattn'


def test_auto_classes_read_what_was_saved(tmp_path, monkeypatch):
    model = build()
    torch.manual_seed(0)
    own = create_model('ivit_nano', landmarks=3, out_indices=(0, 2))
    assert_close(model.backbone.state_dict(), own.state_dict())
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, MMAttnConfig) and config.out_indices == [1, 3]
    # It asks the hub first, also for a folder.
    api = SimpleNamespace(repo_exists=lambda name: True)
    monkeypatch.setattr(auto_factory, 'hf_api', lambda: api)
    again = AutoBackbone.from_pretrained(tmp_path)
    assert isinstance(again, MMAttnBackbone)
    assert_close(again.state_dict(), model.state_dict())


@pytest.mark.filterwarnings('ignore')
def test_what_a_file_lacks_is_initialized(tmp_path):
    model = build()
    model.save_pretrained(tmp_path)
    file = tmp_path / 'model.safetensors'
    weights = load_file(file)
    lacking = 'backbone.stages.2.blocks.0.scale1', 'backbone.stem.proj.weight'
    kept = {name: value for name, value in weights.items() if name not in lacking}
    kept = {name: value + 1 for name, value in kept.items()}
    save_file(kept, file, metadata={'format': 'pt'})
    again = MMAttnBackbone.from_pretrained(tmp_path)
    loaded = again.state_dict()
    assert_close({name: loaded[name] for name in kept}, kept)
    assert loaded[lacking[0]].eq(1).all()
    assert 0 < loaded[lacking[1]].std() < 0.03
    assert again._new == ()


def test_levels_are_named():
    model = build(out_indices=None, out_features=['stage2', 'stage4'])
    assert model.out_indices == [2, 4] and model.channels == [64, 256]
    assert model.out_feature_channels == dict(
        stem=32, stage1=32, stage2=64, stage3=160, stage4=256
    )
    assert model.config.num_hidden_layers == 4
    output = model(image(), output_hidden_states=True)
    assert [m.shape[1] for m in output.feature_maps] == [64, 256]
    assert [h.shape[1] for h in output.hidden_states] == [32, 32, 64, 160, 256]
    assert_close(output.feature_maps, model(image()).feature_maps)
    assert model(image()).hidden_states is None
    with pytest.raises(ValueError, match='IViT: images must have shape'):
        model(image()[0], output_hidden_states=True)
    last = build(out_indices=None)
    assert last.out_features == ['stage4']
    (maps,) = last(image(), return_dict=False)
    assert_close(maps, last(image()).feature_maps)


@pytest.mark.parametrize('backbone', ['ivit_nano', 'mait_xtiny'])
def test_the_stem_is_the_first_stage(backbone):
    both = build(backbone, out_indices=None, out_features=['stem', 'stage1'])
    assert both.out_indices == [0, 1]
    stem, first = both(image()).feature_maps
    hidden = both(image(), output_hidden_states=True).hidden_states
    assert_close(stem, hidden[0])
    x = both.backbone.stem(image().movedim(1, -1))
    x = x if torch.is_tensor(x) else x[0][:, 1:].unflatten(1, tuple(x[1]))
    assert_close(stem, x.movedim(-1, 1))
    assert_close(first, both.backbone(image())[0])
    alone = build(backbone, out_indices=[0])
    assert_close(alone(image()).feature_maps, (stem,))
    assert alone.channels == [stem.shape[1]]


def test_errors():
    with pytest.raises(ValueError, match='mmattn.analysis'):
        build()(image(), output_attentions=True)
    with pytest.raises(ValueError, match="no model 'ivit_tinny'.*'ivit_tiny'"):
        MMAttnConfig(backbone='ivit_tinny')


def test_activations_are_recomputed():
    model = build()
    model.gradient_checkpointing_enable()
    assert model.backbone.with_cp
    model.gradient_checkpointing_disable()
    assert not model.backbone.with_cp


def test_a_segmentor_of_transformers_trains_and_is_saved(tmp_path):
    backbone = MMAttnConfig(backbone='ivit_nano', out_indices=[1, 2, 3, 4])
    head = dict(hidden_size=16, num_labels=5, pool_scales=[1, 2])
    config = UperNetConfig(backbone_config=backbone, use_auxiliary_head=False, **head)
    model = UperNetForSemanticSegmentation(config)
    labels = torch.zeros(2, 64, 64, dtype=torch.long)
    model(pixel_values=image().repeat(2, 1, 1, 1), labels=labels).loss.backward()
    assert all(p.grad is not None for p in model.backbone.parameters())
    model.eval().save_pretrained(tmp_path)
    again = UperNetForSemanticSegmentation.from_pretrained(tmp_path).eval()
    assert_close(again(image()).logits, model(image()).logits)


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'transformers', None)
    monkeypatch.delitem(sys.modules, 'mmattn.integrations.transformers')
    with pytest.raises(ImportError, match=r'pip install "mmattn\[transformers\]"'):
        import_module('mmattn.integrations.transformers')
