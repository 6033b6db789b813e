"""Assign anchors to many objects without a matrix of all overlaps."""

from collections.abc import Iterator

import torch
from mmdet.models.task_modules.assigners import AssignResult
from mmdet.models.task_modules.assigners import MaxIoUAssigner as MMDetMaxIoUAssigner
from mmengine.structures import InstanceData
from torch import Tensor

from mmattn.registry import TASK_UTILS

AT_A_TIME = 2**20  # IoUs, with their corners 40 MB


@TASK_UTILS.register_module()
class MaxIoUAssigner(MMDetMaxIoUAssigner):
    """Assign as mmdet's MaxIoUAssigner does, in memory that objects do not multiply.

    mmdet keeps the IoU of each anchor with each object. For a crop of 512 x 512 pixels
    with 1,000 objects that is over a gigabyte while it is computed. Here objects come a
    few at a time, twice where low-quality matches are wanted. Assignments are equal.

    Args:
        at_a_time: IoUs that are computed at a time; fewer go through mmdet's code.
        kwargs: arguments of mmdet's MaxIoUAssigner. `ignore_iof_thr` above 0 and
            `perm_repeat_gt_cfg` use mmdet's code, too.
    """

    def __init__(self, *args, at_a_time: int = AT_A_TIME, **kwargs):
        super().__init__(*args, **kwargs)
        self.at_a_time = at_a_time

    def assign(
        self,
        pred_instances: InstanceData,
        gt_instances: InstanceData,
        gt_instances_ignore: InstanceData | None = None,
        **kwargs,
    ) -> AssignResult:
        """Return the object of each prior, as mmdet's method does.

        Args:
            pred_instances: `priors` of shape (n, 4).
            gt_instances: `bboxes` of shape (k, 4) and `labels` of shape (k,).
            gt_instances_ignore: objects that are ignored.
        """
        priors, boxes = pred_instances.priors, gt_instances.bboxes
        special = self.ignore_iof_thr > 0 or self.perm_repeat_gt_cfg is not None
        if special or len(priors) * len(boxes) <= self.at_a_time:
            return super().assign(
                pred_instances, gt_instances, gt_instances_ignore, **kwargs
            )
        best = priors.new_full((len(priors),), -1)
        of_best = torch.zeros_like(best, dtype=torch.long)
        best_of_object = priors.new_zeros(len(boxes))
        for start, overlaps in self._overlaps(boxes, priors):
            most, index = overlaps.max(dim=0)
            better = most > best
            best = torch.where(better, most, best)
            of_best = torch.where(better, index + start, of_best)
            best_of_object[start : start + len(overlaps)] = overlaps.max(dim=1).values
        assigned = self._assigned(best, of_best)
        if self.match_low_quality:
            for start, overlaps in self._overlaps(boxes, priors):
                self._match_low_quality(assigned, start, overlaps, best_of_object)
        labels = torch.full_like(assigned, -1)
        found = assigned > 0
        labels[found] = gt_instances.labels[assigned[found] - 1]
        return AssignResult(len(boxes), assigned, best, labels)

    def _overlaps(self, boxes, priors: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the first object and the IoUs of some objects, shape (some, n)."""
        count = max(1, self.at_a_time // len(priors))
        for start in range(0, len(boxes), count):
            yield start, self.iou_calculator(boxes[start : start + count], priors)

    def _assigned(self, best: Tensor, of_best: Tensor) -> Tensor:
        """Return 0 for background, an object from 1 on, and -1 for neither."""
        low, high = 0, self.neg_iou_thr
        if isinstance(high, tuple):
            low, high = high
        assigned = torch.full_like(of_best, -1)
        assigned[(best >= low) & (best < high)] = 0
        positive = best >= self.pos_iou_thr
        assigned[positive] = of_best[positive] + 1
        return assigned

    def _match_low_quality(
        self, assigned: Tensor, start: int, overlaps: Tensor, best_of_object: Tensor
    ):
        """Assign the nearest priors of objects, whose order decides."""
        for row, overlap in enumerate(overlaps, start):
            if best_of_object[row] < self.min_pos_iou:
                continue
            if self.gt_max_assign_all:
                assigned[overlap == best_of_object[row]] = row + 1
            else:
                assigned[overlap.argmax()] = row + 1
