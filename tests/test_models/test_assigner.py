"""The assigner of many objects beside mmdet's."""

import pytest
import torch

pytest.importorskip('mmdet')
from mmdet.models.task_modules.assigners import MaxIoUAssigner as Peer
from mmengine.structures import InstanceData

from mmattn.models.detectors.assigner import MaxIoUAssigner


def boxes(count: int, side: int) -> torch.Tensor:
    """Return boxes on a grid of whole pixels, so that many IoUs are equal."""
    corner = torch.randint(0, 60, (count, 2))
    other = corner + torch.randint(4, side, (count, 2))
    return torch.cat([corner, other], 1).float()


OPTIONS = {
    'rpn': dict(pos_iou_thr=0.7, neg_iou_thr=0.3, min_pos_iou=0.3),
    'rcnn': dict(pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0.5),
    'range': dict(pos_iou_thr=0.6, neg_iou_thr=(0.1, 0.4), min_pos_iou=0.2),
    'one': dict(pos_iou_thr=0.7, neg_iou_thr=0.3, gt_max_assign_all=False),
    'high': dict(pos_iou_thr=0.5, neg_iou_thr=0.4, match_low_quality=False),
}


@pytest.mark.parametrize('at_a_time', [1, 700, 4000])
@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_assignments_are_mmdets(options, at_a_time):
    torch.manual_seed(0)
    objects = InstanceData(bboxes=boxes(40, 30), labels=torch.randint(0, 5, (40,)))
    objects.bboxes[7] = objects.bboxes[30]  # as near as each other
    priors = InstanceData(priors=torch.cat([boxes(300, 40), objects.bboxes[:9]]))
    asked = []
    ours = MaxIoUAssigner(**options, at_a_time=at_a_time)
    compute = ours.iou_calculator
    ours.iou_calculator = lambda a, b: asked.append(len(a) * len(b)) or compute(a, b)
    expected, found = (each.assign(priors, objects) for each in (Peer(**options), ours))
    assert torch.equal(found.gt_inds, expected.gt_inds)
    assert torch.equal(found.labels, expected.labels)
    assert torch.equal(found.max_overlaps, expected.max_overlaps)
    assert found.num_gts == 40 and {-1, 0} & set(found.gt_inds.tolist())
    assert max(asked) <= max(at_a_time, 309)


def test_few_objects_and_none():
    priors = InstanceData(priors=boxes(30, 40))
    none = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0).long())
    found = MaxIoUAssigner(0.5, 0.5, at_a_time=1).assign(priors, none)
    assert found.gt_inds.tolist() == [0] * 30
