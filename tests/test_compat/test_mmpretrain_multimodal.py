"""mmpretrain's multimodal models stay out of the way of transformers 5."""

from types import SimpleNamespace

import pytest

import mmattn  # noqa: F401  corrects
from mmattn.compat.mmpretrain_multimodal import correct_dependency


@pytest.mark.parametrize('version, multimodal', [('4.57.1', True), ('5.0.0', False)])
def test_only_unsuitable_versions_are_turned_down(version, multimodal, monkeypatch):
    dependency = pytest.importorskip('mmpretrain.utils.dependency')
    monkeypatch.setattr(
        dependency, 'distribution', lambda name: SimpleNamespace(version=version)
    )
    monkeypatch.setattr(dependency, 'WITH_MULTIMODAL', True)
    correct_dependency(dependency)
    assert dependency.WITH_MULTIMODAL is multimodal
