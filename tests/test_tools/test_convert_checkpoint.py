"""tools/converters/convert_checkpoint.py: whole files, COCO's classes, refusals."""

import pytest
import torch
from mmengine.config import Config

from mmattn.analysis.flops import build
from mmattn.models import PVTv2
from mmattn.weights.layouts.coco_classes import CATEGORY_IDS, OUTPUTS
from mmattn.weights.layouts.deformable_detr import to_official_state_dict
from mmattn.weights.layouts.pvt import to_official_state_dict as official_pvt
from tools.converters import convert_checkpoint as tool

PVT = 'classification/pvt_v2_b0_300e_in1k'
DETR = """
_base_ = 'mmattn::deformable_detr/r50_refine_50e_coco.py'
model = dict(
    backbone=dict(depth=18, init_cfg=None), neck=dict(in_channels=[128, 256, 512]),
    encoder=dict(num_layers=1), decoder=dict(num_layers=2, num_queries=12))
"""


@pytest.fixture
def pvt(tmp_path):
    """A file of the authors, with a head, and our weights."""
    weights = PVTv2('b0').state_dict()
    head = {'head.weight': torch.ones(10, 256), 'head.bias': torch.ones(10)}
    torch.save(dict(model=official_pvt(weights) | head), tmp_path / 'src.pth')
    return tmp_path / 'src.pth', weights


def test_what_is_written_is_what_a_backbone_loads(pvt, tmp_path):
    src, weights = pvt
    dst = tmp_path / 'new/dst.pth'
    tool.main([PVT, str(src), str(dst), '--backbone'])
    written = torch.load(dst)['state_dict']
    assert all(torch.equal(written[name], weights[name]) for name in weights)
    with pytest.raises(ValueError, match='dst.pth already exists'):
        tool.main([PVT, str(src), str(dst), '--backbone'])


def test_another_model_is_refused(pvt, tmp_path):
    src, _ = pvt
    args = ['classification/pvt_v2_b1_300e_in1k', str(src), str(tmp_path / 'dst.pth')]
    with pytest.raises(ValueError, match='src.pth does not fit .*pvt_v2_b1'):
        tool.main([*args, '--backbone'])
    assert not (tmp_path / 'dst.pth').exists()


def test_coco_classes_of_its_category_ids(tmp_path):
    config, src, dst = (tmp_path / name for name in ('detr.py', 'src.pth', 'dst.pth'))
    config.write_text(DETR)
    model = build(Config.fromfile(config), 'cpu')
    given = {
        name: torch.randn(OUTPUTS, *x.shape[1:]) if 'cls_branches' in name else x
        for name, x in model.state_dict().items()
    }
    torch.save(dict(model=to_official_state_dict(given)), src)
    tool.main([str(config), str(src), str(dst), '--coco-classes'])
    for name, x in torch.load(dst)['state_dict'].items():
        expected = given[name]
        if 'cls_branches' in name:
            expected = expected[list(CATEGORY_IDS)]
        assert torch.equal(x, expected), name
