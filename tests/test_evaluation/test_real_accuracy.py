"""ReaLAccuracy: against loops, on timm's copy of the labels, and on damaged files."""

import json

import pytest
import torch

pytest.importorskip('mmpretrain')

from mmengine.evaluator import Evaluator
from mmpretrain.structures import DataSample
from timm.data.real_labels import RealLabelsImagenet

from mmattn.evaluation import ReaLAccuracy
from mmattn.evaluation.real_accuracy import read_real_labels

LABELS = [[3], [], [1, 4], [0, 2]]


@pytest.fixture
def real_json(tmp_path):
    path = tmp_path / 'real.json'
    path.write_text(json.dumps(LABELS))
    return str(path)


def sample(number, scores, folder='val/n01440764'):
    path = f'data/imagenet/{folder}/ILSVRC2012_val_{number:08d}.JPEG'
    found = DataSample(metainfo=dict(img_path=path)).set_gt_label(0)
    return found.set_pred_score(torch.as_tensor(scores))


def evaluate(metric, samples):
    evaluator = Evaluator(metric)
    for start in range(0, len(samples), 2):  # batches
        evaluator.process(samples[start : start + 2])
    return evaluator.evaluate(len(samples))


def test_any_label_counts_and_images_without_labels_do_not(real_json):
    """In any order, with the number in the name of the file."""
    samples = [
        sample(3, [0.1, 0.2, 0.0, 0.3, 0.4]),  # 4 is one of two labels
        sample(2, [0.9, 0.0, 0.0, 0.1, 0.0]),  # has none
        sample(1, [0.5, 0.0, 0.0, 0.4, 0.1]),  # 3 is the second
        sample(4, [0.0, 0.4, 0.0, 0.5, 0.1], 'val'),  # neither 0 nor 2 is in two
    ]
    found = evaluate(ReaLAccuracy(real_json, topk=(1, 2)), samples)
    assert found == {
        'ReaL/top1': pytest.approx(100 / 3),
        'ReaL/top2': pytest.approx(200 / 3),
    }
    assert evaluate(ReaLAccuracy(real_json, topk=3), samples[-1:]) == {'ReaL/top3': 0}


def test_equals_timms_on_the_published_labels():
    torch.manual_seed(0)
    numbers = torch.randperm(50_000)[:200].add(1).tolist()
    labels = read_real_labels()
    scores = torch.rand(200, 1000)
    for row, number in zip(scores[:120], numbers, strict=False):
        if labels[number - 1]:
            row[max(labels[number - 1])] += 0.998  # right, or nearly
    samples = [sample(n, row) for n, row in zip(numbers, scores, strict=True)]
    found = evaluate(ReaLAccuracy(topk=(1, 5)), samples)
    names = [f'ILSVRC2012_val_{number:08d}.JPEG' for number in numbers]
    theirs = RealLabelsImagenet([f'{n}' for n in range(50_000)], topk=(1, 5))
    theirs.filenames = names
    theirs.add_result(scores)
    assert found['ReaL/top1'] == pytest.approx(theirs.get_accuracy(1))
    assert found['ReaL/top5'] == pytest.approx(theirs.get_accuracy(5))
    assert 30 < found['ReaL/top1'] < found['ReaL/top5'] < 80


@pytest.mark.parametrize(
    'text, message',
    [
        ('[[1], [2', 'is not a JSON file'),
        ('{"0": [1]}', 'must hold a list of lists, got dict'),
        ('[]', 'must hold a list of lists'),
        ('[[1], 2]', r'entry 1 must be a list of classes .* got 2'),
        ('[[1], [1000]]', r'entry 1 must be .* from 0 to 999, got \[1000\]'),
        ('[[true]]', r'entry 0 must be .* got \[True\]'),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
    path = tmp_path / 'real.json'
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        ReaLAccuracy(str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match='no ReaL labels at .*no.json: pass'):
        ReaLAccuracy(str(tmp_path / 'no.json'))


@pytest.mark.parametrize(
    'name', ['a.jpg', 'ILSVRC2012_val_00000005.JPEG', 'ILSVRC2012_val_00000000.JPEG']
)
def test_images_of_other_data_sets_are_refused(real_json, name):
    with pytest.raises(ValueError, match=f'val_00000001 to 00000004, got .*{name}'):
        ReaLAccuracy(real_json).labels_of(f'val/{name}')


@pytest.mark.parametrize('topk', [0, (), (1, -1)], ids=str)
def test_topk_is_checked(real_json, topk):
    with pytest.raises(ValueError, match='topk must be'):
        ReaLAccuracy(real_json, topk=topk)


@pytest.mark.parametrize(
    'number, message',
    [
        (1, 'topk must be at most the 5 classes, got .*6'),
        (2, 'none of the 1 images has a ReaL label'),
    ],
)
def test_evaluations_that_have_no_result(real_json, number, message):
    metric = ReaLAccuracy(real_json, topk=(1, 6))
    with pytest.raises(ValueError, match=message):
        evaluate(metric, [sample(number, [0.0, 0, 1, 0, 0])])
