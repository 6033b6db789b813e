"""Import paths and names of version 0.1 lead to the same objects as the new ones."""

from importlib import import_module

import pytest
import torch

import mmattn.models
import mmattn.ops
from mmattn.compat.moved_modules import MOVED
from mmattn.models.layers import fit_loaded_pos_embed
from mmattn.registry import MODELS

NEEDS = {
    'mmattn.models.deformable_detr': 'mmdet',
    'mmattn.models.distillation': 'mmpretrain',
}


@pytest.mark.parametrize('old', MOVED)
def test_the_old_path_has_the_same_objects(old):
    if old in NEEDS:
        pytest.importorskip(NEEDS[old])
    moved, module = import_module(MOVED[old]), import_module(old)
    names = [name for name in vars(moved) if not name.startswith('__')]
    assert names
    assert all(getattr(module, name) is getattr(moved, name) for name in names)


def test_the_table_names_no_module_that_is_still_there():
    from importlib.machinery import PathFinder

    for old in MOVED:
        parent, _, _ = old.rpartition('.')
        assert PathFinder.find_spec(old, import_module(parent).__path__) is None


def test_an_unknown_module_is_still_not_found():
    with pytest.raises(ModuleNotFoundError, match='mmattn.models.no_such'):
        import_module('mmattn.models.no_such')


@pytest.mark.parametrize('kind', ['Encoder', 'Decoder'])
def test_detr_has_its_old_spelling(kind):
    new = getattr(mmattn.models, f'DeformableDETR{kind}')
    assert getattr(mmattn.models, f'DeformableDetr{kind}') is new
    assert MODELS.get(f'mmattn.DeformableDetr{kind}') is new
    assert MODELS.get(f'mmattn.DeformableDETR{kind}') is new


def test_neighborhood_mask_has_its_old_spelling():
    assert mmattn.ops.neighbourhood_mask is mmattn.ops.neighborhood_mask


def test_the_hook_of_position_embeddings_still_resizes():
    module = mmattn.models.ViT('tiny', img_size=64)
    loaded = dict(pos_embed=torch.randn(1, 36, 192))
    expected = dict(loaded)
    fit_loaded_pos_embed(module, loaded, '')
    module.load_state_dict(expected, strict=False)
    assert torch.equal(loaded['pos_embed'], module.pos_embed)
