"""Non-maximum suppression of graphs beside torchvision's, class by class."""

import pytest
import torch
from torchvision.ops import batched_nms, nms

from mmattn.export.errors import ExportError
from mmattn.export.graphs.nms import EMPTY, NMS
from mmattn.export.metadata import Metadata
from mmattn.export.write import export_program, serialize

OVERLAP = dict(type='nms', iou_threshold=0.5)


def kept(dets, labels):
    """Return the detections without the empty places, which are the last ones."""
    count = int((labels != EMPTY).sum())
    assert (dets[count:] == EMPTY).all() and (labels[count:] == EMPTY).all()
    return dets[:count], labels[:count]


@pytest.mark.parametrize('seed', range(5))
def test_classes_do_not_suppress_each_other(seed):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(200, 2, generator=generator) * 80
    boxes = torch.cat([corner, corner + 20], 1)
    scores = torch.rand(200, generator=generator)
    labels = torch.randint(0, 4, (200,), generator=generator)
    index = batched_nms(boxes, scores, labels, 0.5)[:60]
    assert 20 < len(index)
    dets, found = kept(*NMS(OVERLAP, 60, 'head')(boxes, scores, labels))
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[index])
    assert torch.equal(found, labels[index])


def test_opposite_corners_of_the_image():
    """The last box of a class lies beside the first box of the next class."""
    boxes = torch.tensor([[90.0, 90, 100, 100], [0, 0, 10, 10]])
    dets, labels = NMS(OVERLAP, 9, 'head')(
        boxes, torch.tensor([0.9, 0.8]), torch.arange(2)
    )
    assert labels[:2].tolist() == [0, 1] and torch.equal(dets[:2, :4], boxes)


def test_class_agnostic():
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(50, 2, generator=generator) * 30
    boxes = torch.cat([corner, corner + 20], 1)
    scores, labels = torch.rand(50, generator=generator), torch.arange(50)
    dets, found = kept(
        *NMS(OVERLAP | dict(class_agnostic=True), 50, 'head')(boxes, scores, labels)
    )
    assert torch.equal(found, labels[nms(boxes, scores, 0.5)])
    assert 1 < len(dets) < 50


def test_without_boxes():
    empty = torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long)
    dets, labels = NMS(OVERLAP, 9, 'head')(*empty)
    assert kept(dets, labels)[0].shape == (0, 5)


def test_limit_of_no_box():
    with pytest.raises(ExportError, match='`max_per_img` of head .* got 0'):
        NMS(OVERLAP, 0, 'head')


def test_exports_are_quiet(recwarn):
    """PyTorch 2.14 deprecates what torchvision's `nms` calls when it is traced."""

    class Boxes(torch.nn.Module):
        input_names = ('boxes', 'scores')

        def forward(self, boxes, scores):
            return nms(boxes, scores, 0.5)

    program = export_program(Boxes(), (torch.rand(9, 4), torch.rand(9)))
    metadata = Metadata('detection', ['boxes', 'scores'], ['kept'], [9, 9])
    serialize(program, metadata, 'onnx')
    assert not [each for each in recwarn if 'unbacked' in str(each.message)]
