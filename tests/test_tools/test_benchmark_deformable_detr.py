"""tools/benchmark/train_step.py: whole models, here Deformable DETR beside mmdet's."""

import importlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tools.benchmark import plot
from tools.benchmark import train_step as tool
from tools.benchmark.measure import read_csv

SMALL = """
_base_ = '{base}'
model = dict(
    backbone=dict(depth=18, base_channels=8),
    neck=dict(in_channels=[16, 32, 64]),
    encoder=dict(num_layers=1),
    decoder=dict(num_layers=1))
"""
BASES = {
    'ours': 'mmattn::deformable_detr/r50_50e_coco.py',
    'theirs': 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
}


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_peer_takes_part_with_either_attention(tmp_path):
    for name, base in BASES.items():
        (tmp_path / f'{name}.py').write_text(SMALL.format(base=base))
    path = tmp_path / 'step.csv'
    options = ['--config', tmp_path / 'ours.py', '--peers', tmp_path / 'theirs.py']
    options += ['--whole-models', '--quick', '--csv', path]
    assert tool.main(list(map(str, options))) == 0
    rows = read_csv(path)
    names = ['ours', 'theirs, mmcv in PyTorch', 'theirs, mmattn.compat']
    assert [row['config'] for row in rows] == names
    assert [row['baseline'] for row in rows] == names[1:2] * 3
    assert float(rows[1]['speedup']) == 1
    # Ours has biases before the four norms of its neck, 1024 numbers.
    assert [row['params_m'] for row in rows] == ['2.442', '2.441', '2.441']
    assert plot.main([str(path)]) == 0


def test_formulation_of_mmcv_has_no_operator():
    """It is what mmcv computes without us; inside and outside give the same."""
    layer = importlib.import_module(
        'mmcv.ops.multi_scale_deform_attn'
    ).MultiScaleDeformableAttention(32, 4, 2, 2, dropout=0.0, batch_first=True)
    shapes = torch.tensor([[4, 5], [2, 3]])
    torch.manual_seed(0)
    given = dict(
        query=torch.randn(1, 7, 32),
        value=torch.randn(1, 26, 32),
        reference_points=torch.rand(1, 7, 2, 2),
        spatial_shapes=shapes,
        level_start_index=torch.tensor([0, 20]),
    )
    with tool.formulation_of_mmcv(), Operators() as inside:
        formulation = layer(**given)
    with Operators() as outside:
        served = layer(**given)
    torch.testing.assert_close(served, formulation)
    assert not any(name.startswith('mmattn::') for name in inside.names)
    assert 'mmattn::ms_deform_attn' in outside.names
