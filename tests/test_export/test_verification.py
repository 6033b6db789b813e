"""Serialized graphs are compared with PyTorch."""

import pytest
import torch

from mmattn.export.errors import ExportError
from mmattn.export.metadata import Metadata
from mmattn.export.runner import Runner
from mmattn.export.verification import in_order_of, verify

DETS = torch.tensor([[[9.0, 9, 50, 50, 0.8], [1, 2, 3, 4, 0.6], [9, 9, 51, 50, 0.6]]])
LABELS = torch.tensor([[0, 1, 0]])
MASKS = torch.arange(3.0)[None, :, None, None].expand(1, 3, 28, 28)


def check(outputs, expected, **settings):
    names = ['dets', 'labels', 'masks'][: len(outputs)]
    metadata = Metadata('detection', ['image', 'image_size'], names, [8, 8])
    runner = Runner(lambda *_: [x.numpy() for x in outputs], metadata)
    batch = torch.zeros(1, 3, 8, 8), torch.tensor([[8, 8]])
    verify(runner, lambda *_: expected, [batch], **settings)


def taken(order):
    return [x[:, order] for x in (DETS, LABELS, MASKS)]


@pytest.mark.parametrize('order', [[0, 1, 2], [0, 2, 1], [2, 0, 1]], ids=str)
def test_order_of_detections(order):
    check(taken(order), (DETS, LABELS, MASKS), at_most=0)


def test_empty_places():
    dets, labels = (torch.cat([x, torch.full_like(x, -1)], 1) for x in (DETS, LABELS))
    found = taken([1, 0, 2])
    found = [torch.cat([x, torch.full_like(x, -1)], 1) for x in found[:2]]
    check(found, (dets, labels), at_most=0)
    nothing = torch.full_like(DETS, -1), torch.full_like(LABELS, -1)
    check(nothing, nothing, at_most=0)


@pytest.mark.parametrize(
    'change, name',
    [
        (lambda dets, labels, masks: labels[0, 0].fill_(1), 'boxes'),
        (lambda dets, labels, masks: dets[0, 1, 2].add_(0.1), 'boxes'),
        (lambda dets, labels, masks: dets[0, 2, 4].sub_(0.001), 'scores'),
        (lambda dets, labels, masks: dets[0, 1].copy_(dets[0, 0]), 'boxes'),
        (lambda dets, labels, masks: masks[0, 1].add_(0.1), 'masks'),
    ],
    ids=['label', 'box', 'score', 'twice the same', 'mask'],
)
def test_other_detections_are_refused(change, name):
    found = [x.clone() for x in taken([0, 2, 1])]
    change(*found)
    with pytest.raises(ExportError, match=f'{name} of the exported model differs'):
        check(found, (DETS, LABELS, MASKS))


def test_fewer_detections():
    found = [x[:, :2] for x in (DETS, LABELS, MASKS)]
    assert in_order_of((DETS, LABELS, MASKS), found) is found
    with pytest.raises(ExportError, match='the shape'):
        check(found, (DETS, LABELS, MASKS))
