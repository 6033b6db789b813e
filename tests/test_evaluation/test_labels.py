"""Figures of classes, counted by hand."""

import pickle

import pytest
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


def test_what_is_kept_of_an_image_does_not_grow_with_the_classes():
    metric = LabelConfusion()
    metric.dataset_meta = dict(classes=[*map(str, range(1000))])
    labels = torch.tensor([[[0, 999, 999]]])
    for sample in (
        dict(gt_label=torch.tensor([999]), pred_label=torch.tensor([998])),
        dict(pred_sem_seg=dict(data=labels), gt_sem_seg=dict(data=labels)),
    ):
        metric.process({}, [sample])
    assert all(len(pickle.dumps(result)) < 1000 for result in metric.results)
    metric.compute_metrics(metric.results)
    assert metric.confusion.sum() == 4 and metric.confusion[999].sum() == 3


def test_predictions_of_other_classes_are_refused():
    sample = dict(gt_label=torch.tensor([0]), pred_label=torch.tensor([2]))
    with pytest.raises(ValueError, match='must be less than 2, .* got 2'):
        counted([sample], ['a', 'b'])
