"""mmpretrain's multimodal models stay out of the way of transformers 5."""

from types import SimpleNamespace

import pytest
import transformers
from fresh import run_python

import mmattn  # noqa: F401  corrects
from mmattn.compat.mm_packages import correct_dependency

UNSUITABLE = int(transformers.__version__.partition('.')[0]) >= 5


@pytest.mark.parametrize('version, multimodal', [('4.57.1', True), ('5.0.0', False)])
def test_only_unsuitable_versions_are_turned_down(version, multimodal, monkeypatch):
    dependency = pytest.importorskip('mmpretrain.utils.dependency')
    monkeypatch.setattr(
        dependency, 'distribution', lambda name: SimpleNamespace(version=version)
    )
    monkeypatch.setattr(dependency, 'WITH_MULTIMODAL', True)
    correct_dependency(dependency)
    assert dependency.WITH_MULTIMODAL is multimodal


@pytest.mark.skipif(not UNSUITABLE, reason='transformers fits mmpretrain')
@pytest.mark.slow
@pytest.mark.parametrize('order', ['mmpretrain, mmattn', 'mmattn, mmpretrain'])
def test_the_order_of_imports_does_not_matter(order):
    """Import the package, not its models: later imports see the correction."""
    code = (
        f'import {order}, sys, mmpretrain.utils.dependency as dependency\n'
        "assert 'mmpretrain.models' not in sys.modules\n"
        'assert not dependency.WITH_MULTIMODAL\n'
    )
    run_python('-c', code)
