"""Pictures of detections, and of runs that are not finished."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData
from mmengine.visualization import Visualizer

from mmattn.analysis import sample_pictures
from mmattn.cli import report

BOXES = torch.tensor([[8.0, 8, 24, 24], [32, 32, 56, 56]])


@pytest.mark.parametrize(
    'boxes, masked', [(BOXES, True), (BOXES, False), (BOXES[:0], True)]
)
def test_instances_are_drawn_with_the_masks_that_they_have(boxes, masked):
    image = np.zeros((64, 64, 3), np.uint8)
    instances = InstanceData(bboxes=boxes, labels=torch.tensor([1, 0])[: len(boxes)])
    visualizer = Visualizer()
    visualizer.dataset_meta = dict(classes=('cat', 'dog'))
    if masked:
        masks = torch.zeros(2, 64, 64, dtype=torch.bool)
        masks[0, 12:20, 12:20] = masks[1, 36:52, 36:52] = True
        instances.masks = masks[: len(boxes)]
    drawn, legend = sample_pictures.draw_instances(image, instances, visualizer)
    assert [text for text, _ in legend] == ['dog: 1', 'cat: 1'][: len(boxes)]
    drawn = drawn.any(axis=-1)
    for box in BOXES.int().tolist():
        left, top, right, bottom = box
        inside = drawn[top + 6 : bottom - 6, left + 6 : right - 6]
        edge = drawn[top - 1 : top + 2, left + 4 : right - 4]
        assert edge.any(axis=0).all() == bool(len(boxes))
        assert inside.all() == (masked and bool(len(boxes)))


@pytest.mark.parametrize('classes', [('cat', 'dog'), ('cat',)], ids=len)
def test_colors_are_those_of_classes_where_there_are_several(classes):
    image = np.zeros((64, 64, 3), np.uint8)
    labels = torch.full((2,), len(classes) - 1)
    visualizer = Visualizer()
    visualizer.dataset_meta = dict(classes=classes)
    instances = InstanceData(bboxes=BOXES, labels=labels)
    drawn, legend = sample_pictures.draw_instances(image, instances, visualizer)
    first, second = drawn[8, 12], drawn[32, 40]
    assert (first == second).all() == (len(classes) > 1)
    ((text, color),) = legend
    assert text == f'{classes[-1]}: 2'
    if color is None:
        assert len(classes) == 1
    else:
        np.testing.assert_allclose(
            first / first.max(), np.divide(color, max(color)), atol=0.02
        )


@pytest.mark.parametrize(
    'losses, metric, scale, top',
    [
        ([2.0], 0.5, 'linear', 0.525),
        ([2.0, 1.99], 0.0, 'linear', 0.105),
        ([10.0, 1.0], 40.0, 'log', 42),
    ],
    ids=['one value', 'flat', 'long'],
)
def test_axes_begin_at_zero(losses, metric, scale, top, tmp_path, monkeypatch):
    records = [dict(step=i + 1, loss=loss) for i, loss in enumerate(losses)]
    records.append(dict(step=len(losses), mIoU=metric))
    monkeypatch.setattr(report.plt, 'close', lambda figure: None)
    report.draw_curves(records, ('mIoU',), tmp_path / 'curves.png')
    figure = report.plt.gcf()
    loss_axis, metric_axis = figure.axes
    assert loss_axis.get_yscale() == scale and loss_axis.get_xlim()[0] == 0
    assert metric_axis.get_ylim() == pytest.approx((0, top))
    low, high = loss_axis.get_ylim()
    assert (low == 0 or scale == 'log') and high > losses[0]
    (line,) = loss_axis.lines
    alone = len(losses) == 1
    assert (line.get_marker() == 'o') == alone
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ['one value' in text for text in texts] == [alone, True]
    monkeypatch.undo()
    report.plt.close(figure)


RECORDS = [
    {'loss': 2.0, 'step': 1},
    {'loss': 1.0, 'step': 2},
    {'coco/bbox_mAP': 0.5, 'step': 2},
]


@pytest.fixture
def unfinished(work, tool):
    """Draw a run that has written a log, a checkpoint, or neither."""

    def draw(log: str = '', checkpoint: bool = False) -> tuple[Path, list]:
        run_dir = work / 'work_dirs/detector'
        shutil.rmtree(run_dir, ignore_errors=True)
        scalars = run_dir / '20260102_030405/vis_data/scalars.json'
        scalars.parent.mkdir(parents=True)
        scalars.write_text(log)
        if checkpoint:
            (run_dir / 'epoch_1.pth').touch()
            (run_dir / 'last_checkpoint').write_text(str(run_dir / 'epoch_1.pth'))
        calls = []
        patched = dict(draw_predictions=lambda *args: calls.append(args))
        tool('report', 'detector.py', patched=patched)
        return run_dir, calls

    return draw


def text(records, end='\n'):
    return '\n'.join(map(json.dumps, records)) + end


def test_a_run_without_a_checkpoint_has_curves(unfinished, capsys):
    run_dir, calls = unfinished(text(RECORDS[:2]) + '{"loss": 0.')
    assert (run_dir / 'curves.png').stat().st_size > 5_000
    assert json.loads((run_dir / 'summary.json').read_text())['iterations'] == 2
    assert not calls and 'no checkpoint yet' in capsys.readouterr().out


def test_a_run_without_a_log_has_predictions(unfinished, capsys):
    run_dir, calls = unfinished('', checkpoint=True)
    assert not (run_dir / 'curves.png').exists()
    assert Path(calls[0][1]).samefile(run_dir / 'epoch_1.pth')
    assert 'no record yet' in capsys.readouterr().out


def test_a_folder_without_a_run_is_named(unfinished):
    with pytest.raises(ValueError, match='detector holds no run: neither'):
        unfinished()
