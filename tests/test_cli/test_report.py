"""Curves, and reports of runs that are not finished."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope
from PIL import Image
from predictor_models import noise, write_run

from mmattn.analysis import samples
from mmattn.apis import Predictor
from mmattn.cli import run_report


def test_absent_values_are_named():
    lines = run_report.markdown_table([['mAP_l', -1.0], ['mAP', 0.5]], ['test', ''])
    assert lines[2:4] == ['| mAP_l | none |', '| mAP | 0.500 |']


class NoImages:
    """Stand for the validation of a run."""

    def __len__(self):
        return 1

    def samples(self, count):
        return ()


@pytest.fixture
def unfinished(work, tool, monkeypatch):
    """Draw a run that has written a log, a checkpoint, or neither."""

    def draw(log: str = '', checkpoint: bool = False) -> tuple[Path, list]:
        run_dir = work / 'work_dirs/detector'
        shutil.rmtree(run_dir, ignore_errors=True)
        scalars = run_dir / '20260102_030405/vis_data/scalars.json'
        scalars.parent.mkdir(parents=True)
        scalars.write_text(log)
        if checkpoint:
            for name in ('epoch_1.pth', 'best_coco_segm_mAP_epoch_1.pth'):
                (run_dir / name).touch()
            (run_dir / 'last_checkpoint').write_text(str(run_dir / 'epoch_1.pth'))
        calls = []
        stand_in = lambda *args: calls.append(args) or NoImages()  # noqa: E731
        monkeypatch.setattr(samples, 'Validation', stand_in)
        monkeypatch.setattr(run_report, 'draw_samples', lambda *args: None)
        monkeypatch.setattr(run_report, 'draw_worst', lambda *args: [])
        tool('report', 'detector.py')
        return run_dir, calls

    return draw


CUT = '{"loss": 2.0, "step": 1}\n{"loss": 1.0, "step": 2}\n{"loss": 0.'


def test_a_run_without_a_checkpoint_has_curves(unfinished, capsys):
    run_dir, calls = unfinished(CUT)
    assert (run_dir / 'curves.png').stat().st_size > 5_000
    assert json.loads((run_dir / 'summary.json').read_text())['iterations'] == 2
    assert not calls and 'no checkpoint yet' in capsys.readouterr().out


def test_a_run_without_a_log_has_predictions(unfinished, capsys):
    run_dir, calls = unfinished('', checkpoint=True)
    assert not (run_dir / 'curves.png').exists()
    best = 'best_coco_segm_mAP_epoch_1.pth'
    assert Path(calls[0][1]).samefile(run_dir / best)  # which `predict` takes, too
    assert f'Predictions of `{best}`' in (run_dir / 'report.md').read_text()
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
        *_, found = samples.Validation(cfg, str(run / 'epoch_2.pth')).predict(0)
    expected = Predictor(run, device='cpu')(tmp_path / '0.png')
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
