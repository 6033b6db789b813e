"""Non-maximum suppression of graphs beside torchvision's, class by class."""

import pytest
import torch
from torchvision.ops import batched_nms, nms

from mmattn.export.errors import ExportError
from mmattn.export.graphs.nms import EMPTY, NMS
from mmattn.export.metadata import Metadata
from mmattn.export.program import export_program
from mmattn.export.writing import convert_onnx

OVERLAP = dict(type='nms', iou_threshold=0.5)


def kept(dets, labels):
    """Return the detections without the empty places, which are the last ones."""
    count = int((labels != EMPTY).sum())
    assert (dets[count:] == EMPTY).all() and (labels[count:] == EMPTY).all()
    return dets[:count], labels[:count]


def test_classes_do_not_suppress_each_other():
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(200, 2, generator=generator) * 80
    boxes = torch.cat([corner, corner + 20], 1)
    scores = torch.rand(200, generator=generator)
    labels = torch.randint(0, 4, (200,), generator=generator)
    index = batched_nms(boxes, scores, labels, 0.5)[:60]
    assert 20 < len(index)
    dets, found = kept(*NMS(OVERLAP, 60, 'head')(boxes, scores, labels))
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[index])
    assert torch.equal(found, labels[index])


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
    convert_onnx(program, metadata)
    assert not [each for each in recwarn if 'unbacked' in str(each.message)]
