"""Pictures of detections."""

import pytest

for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

import draw_run  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402
from mmengine.visualization import Visualizer  # noqa: E402

BOXES = torch.tensor([[8.0, 8, 24, 24], [32, 32, 56, 56]])


@pytest.mark.parametrize('boxes', [BOXES, BOXES[:0]], ids=['boxes', 'nothing'])
@pytest.mark.parametrize('masked', [True, False], ids=['masks', 'no masks'])
def test_instances_are_drawn_with_the_masks_that_they_have(boxes, masked):
    image = np.zeros((64, 64, 3), np.uint8)
    instances = InstanceData(bboxes=boxes)
    if masked:
        masks = torch.zeros(2, 64, 64, dtype=torch.bool)
        masks[0, 12:20, 12:20] = masks[1, 36:52, 36:52] = True
        instances.masks = masks[: len(boxes)]
    drawn = draw_run.draw_instances(image, instances, Visualizer()).any(axis=-1)
    for box in BOXES.int().tolist():
        left, top, right, bottom = box
        inside = drawn[top + 6 : bottom - 6, left + 6 : right - 6]
        edge = drawn[top - 1 : top + 2, left + 4 : right - 4]
        assert edge.any(axis=0).all() == bool(len(boxes))
        assert inside.all() == (masked and bool(len(boxes)))


def test_a_run_that_logged_no_loss_is_named(work, tool):
    run_dir = work / 'work_dirs/detector'
    scalars = run_dir / '20260102_030405/vis_data/scalars.json'
    scalars.parent.mkdir(parents=True)
    scalars.write_text('{"coco/bbox_mAP": 0.5, "step": 4}\n')
    (run_dir / 'last_checkpoint').write_text('epoch_1.pth')
    with pytest.raises(ValueError, match='scalars.json has no training loss'):
        tool('analysis/draw_run', 'detector.py')
