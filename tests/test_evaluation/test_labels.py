"""Figures of classes, counted by hand."""

import pytest

pytest.importorskip('mmengine')

import torch

from mmattn.evaluation import LabelConfusion


def counted(samples, classes):
    metric = LabelConfusion()
    metric.dataset_meta = dict(classes=classes)
    metric.process({}, samples)
    assert metric.evaluate(len(samples)) == {}
    return metric


def test_pixels():
    labels, found = torch.tensor([[[0, 0, 1, 255]]]), torch.tensor([[[0, 1, 1, 2]]])
    sample = dict(pred_sem_seg=dict(data=found), gt_sem_seg=dict(data=labels))
    metric = counted([sample], ['a', 'b', 'c'])
    assert metric.confusion.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert metric.classes['a'] == dict(IoU=50, accuracy=50)
    assert metric.classes['b'] == dict(IoU=50, accuracy=100)
    assert all(value != value for value in metric.classes['c'].values())  # NaN


def test_images_of_classes_that_share_a_name():
    pairs = [(0, 0), (0, 1), (1, 1), (1, 1)]  # label and prediction
    samples = [
        dict(gt_label=torch.tensor([label]), pred_label=torch.tensor([found]))
        for label, found in pairs
    ]
    classes = counted(samples, ['crane', 'crane']).classes
    assert classes['crane (0)'] == dict(precision=100, recall=50)
    assert classes['crane (1)'] == dict(precision=pytest.approx(200 / 3), recall=100)
