"""Presets by name, and the classifier on them."""

import pytest
import torch
from torch import nn

import mmattn
from mmattn.models import IViT, PooledClassifier, PVTv2, backbones


def test_names_are_identifiers_that_wildcards_select():
    names = mmattn.list_models()
    assert names == sorted(names) and all(map(str.isidentifier, names))
    assert len(names) == sum(
        len(vars(backbones)[n].arch_zoo) for n in backbones.__all__
    )
    assert mmattn.list_models('pvt_v2_b2*') == ['pvt_v2_b2', 'pvt_v2_b2_li']


def test_a_name_builds_a_backbone_or_a_classifier():
    backbone = mmattn.create_model('ivit_nano', out_indices=(1, 3), in_channels=2)
    assert type(backbone) is IViT and backbone.out_channels == (64, 256)
    with torch.device('meta'):
        model = mmattn.create_model(
            'pvt_v2_b2_li', num_classes=7, drop_rate=0.5, drop_path_rate=0.1
        )
        assert type(model.backbone) is PVTv2 and model.head_drop.p == 0.5
        assert model(torch.empty(2, 3, 64, 64)).shape == (2, 7)
        assert mmattn.create_model('ivit_nano', num_classes=0).num_classes == 0


def test_a_misspelled_name_has_neighbors():
    with pytest.raises(ValueError, match=r"no model 'ivit_tinny'.*'ivit_tiny'"):
        mmattn.create_model('ivit_tinny')


def test_maps_without_a_norm_get_one_before_the_head():
    with torch.device('meta'):
        normed = {
            name: type(mmattn.create_model(name, num_classes=3).fc_norm)
            for name in ('pvt_nano', 'pvt_v2_b0', 'ivit_nano', 'mait_xtiny')
        }
        bare = mmattn.create_model('ivit_nano', num_classes=3, out_norm=False)
    assert normed.pop('pvt_nano') is type(bare.fc_norm) is nn.LayerNorm
    assert set(normed.values()) == {nn.Identity}


@pytest.mark.parametrize(
    'settings', [dict(), dict(out_indices=(0, 3)), dict(out_type='cls_token')]
)
def test_a_classifier_needs_the_last_map_alone(settings):
    with torch.device('meta'):
        backbone = backbones.PVT('nano', **settings)
        with pytest.raises(ValueError, match='PVT must return its last map alone'):
            PooledClassifier(backbone, 3)
