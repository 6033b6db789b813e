"""Whatever ends a run while it saves, `last_checkpoint` names a loadable file."""

import errno
import os
from pathlib import Path

import pytest
import torch
from mmengine.fileio import LocalBackend
from mmengine.fileio.backends import backends
from mmengine.hooks import CheckpointHook as MMEngineCheckpointHook
from run_files import best_run, last, saved
from tiny_run import make_runner

from mmattn.engine import CheckpointHook, read_checkpoint
from mmattn.engine.atomic_backend import atomic_backend_args
from mmattn.files.atomic import write_atomically
from mmattn.files.last_checkpoint import check_last_checkpoint


def test_content_is_durable_before_it_has_the_name(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        order.append(os.readlink(f'/proc/self/fd/{descriptor}'))
        fsync(descriptor)

    def noted_replace(source, target):
        order.append('replace')
        replace(source, target)

    monkeypatch.setattr(os, 'fsync', noted_fsync)
    monkeypatch.setattr(os, 'replace', noted_replace)
    write_atomically(tmp_path / 'file', b'content')
    temporary, *then = order
    assert Path(temporary).name != 'file' and then == ['replace', str(tmp_path)]


@pytest.mark.parametrize('type_', ['CheckpointHook', 'mmattn.CheckpointHook', None])
def test_the_runner_uses_ours(tmp_path, type_):
    hook = type_ and dict(type=type_, interval=1, by_epoch=False)
    runner = make_runner(tmp_path, default_hooks=dict(checkpoint=hook))
    found = [h for h in runner.hooks if isinstance(h, MMEngineCheckpointHook)]
    assert [type(hook) for hook in found] == ([CheckpointHook] if type_ else [])
    assert not any(hook.by_epoch for hook in found)


def test_the_outdated_is_removed_after_the_new_one_is_named(tmp_path, monkeypatch):
    there_at_each_write = []

    def noted(path, content):
        there_at_each_write.append((Path(path).name, saved(tmp_path)))
        write_atomically(path, content)

    monkeypatch.setattr('mmattn.engine.checkpoint_hook.write_atomically', noted)
    monkeypatch.setattr('mmattn.engine.atomic_backend.write_atomically', noted)
    runner = best_run(tmp_path)
    runner.train()
    pointer, best = 'last_checkpoint', 'best_score_iter_{}.pth'.format
    before = {'iter_2.pth', best(2), pointer}
    first = [name for name, _ in there_at_each_write].index('iter_3.pth')
    assert there_at_each_write[first : first + 3] == [
        ('iter_3.pth', before),
        (pointer, before | {'iter_3.pth'}),
        (best(3), {'iter_3.pth', best(2), pointer}),
    ]
    assert saved(tmp_path) == {'iter_3.pth', best(3), pointer}
    info = read_checkpoint(last(tmp_path))['message_hub']['runtime_info']
    assert info['best_ckpt'] == str(tmp_path / best(3))
    # The best of the same iteration has the name of the one before: it is not removed.
    inode = (tmp_path / best(3)).stat().st_ino
    runner.val_loop.run()
    assert (tmp_path / best(3)).stat().st_ino != inode


def test_what_killed_runs_left_is_removed_on_resume(tmp_path):
    make_runner(tmp_path).train()
    (tmp_path / 'iter_3.pth').touch()  # as if killed before its removal
    (tmp_path / '.iter_5.pth.123.mmattn-tmp').write_bytes(b'half a checkpoint')
    make_runner(tmp_path, resume=True, max_iters=5).train()
    assert saved(tmp_path) == {'iter_5.pth', 'last_checkpoint'}


@pytest.mark.parametrize(
    ('named', 'message'),
    [
        ('/gone/iter_4.pth', 'was the folder moved.*--resume .*iter_4.pth'),
        ('', "names '', which does not exist; name a"),
        ('http://127.0.0.1:9/iter_4.pth', 'names the address http.*as --resume'),
        ('\0\x80PK', "must have the path of a checkpoint, got '"),
        ('a' * 10**7, 'must have the path of a checkpoint'),
        (None, None),
    ],
    ids=['moved', 'empty', 'address', 'binary', 'long', 'none'],
)
def test_a_last_checkpoint_that_is_not_there_is_named(tmp_path, named, message):
    (tmp_path / 'iter_4.pth').touch()
    if named is not None:
        (tmp_path / 'last_checkpoint').write_bytes(named.encode('latin1'))
    if message is None:
        check_last_checkpoint(str(tmp_path))
        return
    with pytest.raises(ValueError, match=message):
        make_runner(tmp_path, resume=True).train()


def test_a_checkpoint_that_the_user_names_needs_no_last_checkpoint(tmp_path):
    make_runner(tmp_path).train()
    (tmp_path / 'last_checkpoint').write_text('/gone/iter_4.pth')
    named = str(tmp_path / 'iter_4.pth')
    make_runner(tmp_path, resume=True, load_from=named, max_iters=5).train()
    assert last(tmp_path).name == 'iter_5.pth'


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / 'iter_1.pth'
    write_atomically(path, b'old')

    def full_disk(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full_disk)
    with pytest.raises(OSError, match='previous content is untouched') as caught:
        write_atomically(path, b'new')
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


class Mounted(LocalBackend):
    """Local files of a user's own backend, which is not to be replaced."""


@pytest.mark.parametrize(
    'uri, given, expected',
    [
        ('runs/1', None, dict(backend='mmattn.atomic')),
        ('http://host/runs/1', None, None),
        ('runs/1', dict(backend='mounted'), dict(backend='mounted')),
    ],
    ids=['default', 'remote', 'own-backend'],
)
def test_only_plain_local_files_are_made_atomic(monkeypatch, uri, given, expected):
    monkeypatch.setitem(backends, 'mounted', Mounted)
    assert atomic_backend_args(uri, given) == expected


@pytest.fixture
def resume_with(tmp_path):
    """Resumes in the folder `run` from a checkpoint with other names of files."""
    best_run(tmp_path / 'first').train()
    poisoned = read_checkpoint(last(tmp_path / 'first'))

    def resume(**names):
        poisoned['message_hub']['runtime_info'].update(names, best_score=0)
        poisoned['message_hub']['resumed_keys'].update(dict.fromkeys(names, True))
        path = str(tmp_path / 'poisoned.pth')
        torch.save(poisoned, path)
        best_run(tmp_path / 'run', max_iters=5, load_from=path, resume=True).train()

    return resume


AT_5 = {'best_score_iter_5.pth', 'iter_5.pth', 'last_checkpoint'}


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


def test_names_of_other_types_are_ignored(tmp_path, resume_with):
    victim = tmp_path / 'precious.pth'
    victim.write_text('data')
    (tmp_path / 'run' / 'iter_').mkdir(parents=True)  # or the step leads nowhere
    for steps in (['/../../precious', -1, True, 1.5, '3', 2], {'a': 1}):
        resume_with(keep_ckpt_ids=steps, best_ckpt=['x'])
        assert victim.read_text() == 'data'
        assert saved(tmp_path / 'run') == AT_5


def test_the_best_of_an_earlier_process_is_removed(tmp_path, monkeypatch):
    """Also when the work dir was written as another path then."""
    monkeypatch.chdir(tmp_path)
    best_run(Path('run')).train()
    best_run(tmp_path / 'run', 5, load_from='run/iter_3.pth', resume=True).train()
    assert saved(tmp_path / 'run') == AT_5
