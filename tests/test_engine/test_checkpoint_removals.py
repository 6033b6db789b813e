"""A checkpoint has no files removed but those that the run has saved."""

import copy
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmengine')

from run_files import best_run, last, saved

from mmattn.engine import CheckpointHook, read_checkpoint


@pytest.fixture(scope='module')
def saved_at_3(tmp_path_factory):
    work_dir = tmp_path_factory.mktemp('saved_at_3')
    best_run(work_dir).train()
    return read_checkpoint(last(work_dir))


@pytest.fixture
def resume_with(saved_at_3, tmp_path):
    """Resumes in the folder `run` from a checkpoint with other names of files."""

    def resume(**runtime_info):
        poisoned = copy.deepcopy(saved_at_3)
        poisoned['message_hub']['runtime_info'].update(runtime_info, best_score=0)
        poisoned['message_hub']['resumed_keys'].update(
            dict.fromkeys(runtime_info, True)
        )
        path = tmp_path / 'poisoned.pth'
        torch.save(poisoned, path)
        best_run(
            tmp_path / 'run', max_iters=5, load_from=str(path), resume=True
        ).train()

    return resume


@pytest.mark.parametrize('kind', ['file', 'folder', 'dots', 'link'])
def test_a_checkpoint_cannot_have_others_removed(tmp_path, resume_with, kind):
    """Not what lies elsewhere, even if it is named as a checkpoint."""
    run, elsewhere = tmp_path / 'run', tmp_path / 'elsewhere'
    named = victim = elsewhere / 'best_score_iter_3.pth'
    inside = victim / 'data' if kind == 'folder' else victim
    inside.parent.mkdir(parents=True)
    inside.write_text('data')
    if kind == 'dots':
        named = run / '..' / 'elsewhere' / victim.name
    if kind == 'link':
        run.mkdir()
        (run / 'link').symlink_to(elsewhere)
        named = run / 'link' / victim.name
    resume_with(best_ckpt=str(named))
    assert inside.read_text() == 'data'


def test_a_checkpoint_cannot_have_other_names_removed(tmp_path):
    hook = CheckpointHook(by_epoch=False, out_dir=str(tmp_path))
    for name in ('config.py', 'best_score', 'iter_3.pth.bak', 'best_iter_x.pth', ''):
        assert not hook._is_own(str(tmp_path / name))


def test_names_of_other_types_are_ignored(tmp_path, resume_with):
    victim = tmp_path / 'precious.pth'
    victim.write_text('data')
    (tmp_path / 'run' / 'iter_').mkdir(parents=True)  # or the step leads nowhere
    for steps in (['/../../precious', 2], [-1, True, 1.5, '3'], 'iter', {'a': 1}):
        resume_with(keep_ckpt_ids=steps, best_ckpt=['x'])
        assert victim.read_text() == 'data'
        assert saved(tmp_path / 'run') == {
            'best_score_iter_5.pth',
            'iter_5.pth',
            'last_checkpoint',
        }


def test_the_best_of_an_earlier_process_is_removed(tmp_path, monkeypatch):
    """Also when the work dir was written as another path then."""
    monkeypatch.chdir(tmp_path)
    best_run(Path('run')).train()
    best_run(tmp_path / 'run', 5, load_from='run/iter_3.pth', resume=True).train()
    assert saved(tmp_path / 'run') == {
        'best_score_iter_5.pth',
        'iter_5.pth',
        'last_checkpoint',
    }


@pytest.mark.parametrize('template', ['epoch-{:03d}.pth', '{}.ckpt', 'iter_{}.pth'])
def test_templates_of_names_are_recognized(tmp_path, template):
    hook = CheckpointHook(filename_tmpl=template, out_dir=str(tmp_path))
    name = template.format(12)
    assert hook._is_own(str(tmp_path / name))
    assert hook._is_own(str(tmp_path / f'best_coco_bbox_{name}'))
    assert not hook._is_own(str(tmp_path / f'{name}x'))
    assert not hook._is_own(str(tmp_path.parent / name))
