"""Fixtures for the tests of the operators that stand in for mmcv's compiled ones."""

import importlib

import pytest

from mmattn.compat import activate

activate()

MODULES = [
    'deform_conv',
    'focal_loss',
    'modulated_deform_conv',
    'multi_scale_deform_attn',
    'nms',
    'roi_align',
]


@pytest.fixture
def served_ops(monkeypatch):
    """Makes `mmcv.ops` call our operators, also where mmcv was compiled."""
    pytest.importorskip('mmcv')
    from mmattn.compat import mmcv_ops

    for name in MODULES:
        module = importlib.import_module(f'mmcv.ops.{name}')
        monkeypatch.setattr(module, 'ext_module', mmcv_ops)
    return mmcv_ops
