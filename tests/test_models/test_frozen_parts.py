"""Test what `frozen_stages` freezes, and the depth of each parameter, by name.

0 freezes the stem, with all that is added to its map; n freezes the first n stages as
well, each with what leads to it. Norms that only end returned maps stay trained.
"""

import re

import pytest
import torch
from backbones import BACKBONES, all_indices, build

from mmattn.models import PVT, HMaiT, MaskedCaiT

CASES = {cls.__name__: (cls, {}) for cls in BACKBONES}
CASES |= {
    'HMaiT-absolute': (HMaiT, dict(position='absolute')),
    'PVT-token': (PVT, dict(out_type='cls_token')),
    'MaskedCaiT-token': (MaskedCaiT, dict(out_type='cls_token')),
}


def stage_of(name):
    """Return the `frozen_stages` from which on a parameter is frozen, or None."""
    if name.startswith('stem.'):
        return 0
    stage = re.match(r'(?:blocks|stages)\.(\d+)\.', name)
    return int(stage[1]) + 1 if stage else None


@pytest.mark.parametrize('cls, kwargs', CASES.values(), ids=CASES)
def test_frozen_parameters(cls, kwargs):
    with torch.device('meta'):
        for frozen_stages in range(-1, len(all_indices(cls)) + 1):
            model = build(cls, frozen_stages=frozen_stages, **kwargs)
            for name, param in model.named_parameters():
                stage = stage_of(name)
                frozen = stage is not None and stage <= frozen_stages
                assert param.requires_grad != frozen, (frozen_stages, name)


@pytest.mark.parametrize('cls, kwargs', CASES.values(), ids=CASES)
def test_depths_grow_from_the_stem_along_the_levels(cls, kwargs):
    with torch.device('meta'):
        model = cls(**kwargs)
    depths = {name: model.get_layer_depth(name) for name, _ in model.named_parameters()}
    parts = 'stem', *(f'stages.{i}' for i in range(4)), 'blocks', 'out_norms'
    found = [
        depth
        for part in parts
        for depth in sorted({d for n, (d, _) in depths.items() if n.startswith(part)})
    ]
    last = model.get_layer_depth('head.fc.weight', 'backbone.')[0]
    assert found == [*range(last)] + [last] * bool(model.out_norms)
    assert {count for _, count in depths.values()} == {last + 1}
