"""Curves, and reports of runs that are not finished."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.registry import DefaultScope
from PIL import Image
from predictor_models import noise, write_run

from mmattn.analysis.samples import Validation
from mmattn.apis import Predictor
from mmattn.cli import report


@pytest.mark.parametrize(
    'losses, metric, ticks, top',
    [
        ([2.0], 0.5, None, 0.525),
        ([2.0, 1.99], 0.0, None, 0.105),
        ([10.0, 1.0], 40.0, ['1', '2', '5', '10'], 42),
    ],
    ids=['one value', 'flat', 'long'],
)
def test_axes_begin_at_zero(losses, metric, ticks, top, tmp_path, monkeypatch):
    records = [dict(step=i + 1, loss=loss) for i, loss in enumerate(losses)]
    records.append({'step': len(losses), 'mIoU': metric, 'bbox_mAP_l': -1.0})
    kept, save = [], Figure.savefig

    def keep(figure, *args, **kwargs):
        kept.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, 'savefig', keep)
    report.draw_curves(records, ('mIoU', 'bbox_mAP_l'), tmp_path / 'curves.png')
    (figure,) = kept
    loss_axis, metric_axis = figure.axes
    assert loss_axis.get_xlim()[0] == 0
    assert metric_axis.get_ylim() == pytest.approx((0, top))
    low, high = loss_axis.get_ylim()
    if ticks:
        seen = [x.get_text() for x in loss_axis.get_yticklabels()]
        places = loss_axis.get_yticks()
        assert ticks == [
            text for x, text in zip(places, seen, strict=True) if low <= x <= high
        ]
    assert (low == 0 or ticks) and high > losses[0]
    (line,) = loss_axis.lines
    alone = len(losses) == 1
    assert (line.get_marker() == 'o') == alone
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ['one value' in text for text in texts] == [alone, True]  # none of -1
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1, 'it is cut'


def test_absent_values_are_named():
    lines = report.markdown_table([['mAP_l', -1.0], ['mAP', 0.5]], ['test', ''])
    assert lines[2:4] == ['| mAP_l | none |', '| mAP | 0.500 |']


RECORDS = [
    {'loss': 2.0, 'step': 1},
    {'loss': 1.0, 'step': 2},
    {'coco/bbox_mAP': 0.5, 'step': 2},
]


class NoImages:
    """Stand for the validation of a run."""

    def __len__(self):
        return 1

    def samples(self, count):
        return ()


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
        patched = dict(
            Validation=lambda *args: calls.append(args) or NoImages(),
            draw_samples=lambda *args: None,
            draw_worst=lambda *args: [],
        )
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


def test_a_classifier_sees_images_as_in_training(tmp_path):
    """Configs of mmpretrain have the normalization beside the model."""
    run = write_run(tmp_path / 'run', 'classification')
    Image.fromarray(noise(50, 60)).save(tmp_path / '0.png')
    (tmp_path / 'labels.txt').write_text('0.png 1\n')
    cfg = Config.fromfile(run / 'classification.py')
    loader = dict(dataset=dict(cfg.test_dataloader.dataset))
    loader['dataset'] |= dict(data_root=str(tmp_path), ann_file='labels.txt')
    cfg.val_dataloader = loader
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        *_, found = Validation(cfg, str(run / 'epoch_2.pth')).predict(0)
    expected = Predictor(run, device='cpu')(tmp_path / '0.png')
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
