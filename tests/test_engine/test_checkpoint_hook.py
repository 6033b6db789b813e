"""Whatever ends a run while it saves, `last_checkpoint` names a loadable file."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('mmengine')
from mmengine.hooks import CheckpointHook as MMEngineCheckpointHook
from mmengine.runner import FlexibleRunner
from run_files import best_run, files, last, saved
from tiny_run import make_runner

from mmattn.engine import CheckpointHook, Runner, read_checkpoint
from mmattn.engine.checkpoints import atomic_files
from mmattn.engine.checkpoints.atomic_files import write_atomically
from mmattn.engine.checkpoints.hook import check_last_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def full_disk(monkeypatch):
    """Checkpoints cannot grow beyond a few bytes: a write fails part of the way.

    The limit holds during that write alone; the tests' own output may be a longer file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(size):
        def write_to_full_disk(path, content):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                write_atomically(path, content)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        monkeypatch.setattr(atomic_files, 'write_atomically', write_to_full_disk)
        return write_to_full_disk

    return fill


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / 'file'
    for content in (b'old', b'new and longer', b''):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert files(tmp_path) == {'file'}


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, full_disk):
    path = tmp_path / 'file'
    path.write_bytes(b'old')
    write_to_full_disk = full_disk(100)
    with pytest.raises(OSError, match='untouched') as error:
        write_to_full_disk(path, bytes(1000))
    assert error.value.errno == errno.EFBIG
    assert error.value.filename == str(path)
    assert path.read_bytes() == b'old'
    assert files(tmp_path) == {'file'}


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
    temporary, then, folder = order
    assert temporary.endswith('.mmattn-tmp')
    assert then == 'replace'
    assert folder == str(tmp_path)


@pytest.mark.parametrize('type_', ['CheckpointHook', 'mmattn.CheckpointHook'])
def test_the_runner_uses_ours(tmp_path, type_):
    hooks = dict(checkpoint=dict(type=type_, interval=1, by_epoch=False))
    runner = make_runner(tmp_path, default_hooks=hooks)
    (hook,) = (h for h in runner.hooks if isinstance(h, MMEngineCheckpointHook))
    assert type(hook) is CheckpointHook
    assert not hook.by_epoch


def test_a_run_can_do_without(tmp_path):
    runner = make_runner(tmp_path, default_hooks=dict(checkpoint=None))
    assert not any(isinstance(hook, MMEngineCheckpointHook) for hook in runner.hooks)


def test_the_outdated_is_removed_after_the_new_one_is_named(tmp_path, monkeypatch):
    there_at_each_write = []

    def noted(path, content):
        there_at_each_write.append((Path(path).name, saved(tmp_path)))
        write_atomically(path, content)

    monkeypatch.setattr('mmattn.engine.checkpoints.hook.write_atomically', noted)
    monkeypatch.setattr(atomic_files, 'write_atomically', noted)
    make_runner(tmp_path).train()
    pointer = 'last_checkpoint'
    assert there_at_each_write[-2:] == [
        ('iter_4.pth', {'iter_3.pth', pointer}),
        (pointer, {'iter_3.pth', 'iter_4.pth', pointer}),
    ]
    assert saved(tmp_path) == {'iter_4.pth', pointer}


def test_the_best_is_removed_after_the_better_one_is_saved(tmp_path, monkeypatch):
    best_at_each_write = []

    def noted(path, content):
        if Path(path).name.startswith('best'):
            best_at_each_write.append(len([*tmp_path.glob('best*')]))
        write_atomically(path, content)

    monkeypatch.setattr(atomic_files, 'write_atomically', noted)
    best_run(tmp_path).train()
    assert best_at_each_write == [0, 1, 1]
    assert saved(tmp_path) == {
        'best_score_iter_3.pth',
        'iter_3.pth',
        'last_checkpoint',
    }
    info = read_checkpoint(last(tmp_path))['message_hub']['runtime_info']
    assert info['best_ckpt'] == str(tmp_path / 'best_score_iter_3.pth')


def test_a_better_score_at_the_same_iteration_replaces_the_best(tmp_path):
    """The best checkpoint has the name of the one before, which is not removed."""
    runner = best_run(tmp_path)
    runner.train()
    best = tmp_path / 'best_score_iter_3.pth'
    before = best.stat().st_ino
    runner.val_loop.run()
    assert best.stat().st_ino != before
    assert read_checkpoint(best)['meta']['iter'] == 3


def test_an_outdated_folder_is_removed_too(tmp_path, monkeypatch):
    """DeepSpeed saves a folder for each checkpoint."""

    def save_folder(self, out_dir, filename, *args, **kwargs):
        folder = Path(out_dir, filename)
        folder.mkdir()
        (folder / 'shard').touch()

    monkeypatch.setattr(Runner, 'save_checkpoint', save_folder)
    make_runner(tmp_path).train()
    assert [path.name for path in tmp_path.glob('iter_*')] == ['iter_4.pth']


def test_a_full_disk_ends_the_run_and_spares_what_was_saved(tmp_path, full_disk):
    wide = dict(width=10_000)
    make_runner(tmp_path, model=wide).train()
    before = saved(tmp_path)
    longer = dict(type='IterBasedTrainLoop', max_iters=6, val_interval=100)
    runner = make_runner(tmp_path, model=wide, resume=True, train_cfg=longer)
    full_disk((tmp_path / 'iter_4.pth').stat().st_size // 2)
    with pytest.raises(OSError, match='iter_5.pth'):
        runner.train()
    assert saved(tmp_path) == before
    assert read_checkpoint(last(tmp_path))['meta']['iter'] == 4


def test_what_killed_runs_left_is_removed_at_the_start(tmp_path):
    left = tmp_path / '.iter_9.pth.123.mmattn-tmp'
    left.write_bytes(b'half a checkpoint')
    runner = make_runner(tmp_path, default_hooks=None)
    runner.call_hook('before_train')
    assert not left.exists()


def test_an_outdated_one_that_a_kill_spared_is_removed_on_resume(tmp_path):
    make_runner(tmp_path).train()
    (tmp_path / 'iter_3.pth').touch()  # as if killed before its removal
    longer = dict(type='IterBasedTrainLoop', max_iters=5, val_interval=100)
    make_runner(tmp_path, resume=True, train_cfg=longer).train()
    assert saved(tmp_path) == {'iter_5.pth', 'last_checkpoint'}


def test_without_a_checkpoint_resuming_starts_anew(tmp_path):
    runner = make_runner(tmp_path, resume=True)
    runner.train()
    assert runner.iter == 4


@pytest.mark.parametrize(
    ('named', 'message'),
    [
        ('/gone/iter_2.pth', "names '/gone/iter_2.pth', which does not exist; name a"),
        ('/gone/iter_4.pth', 'was the folder moved.*--resume .*iter_4.pth'),
        ('', "names ''"),
    ],
    ids=['removed', 'moved', 'empty'],
)
def test_a_last_checkpoint_that_is_not_there_is_named(tmp_path, named, message):
    make_runner(tmp_path).train()
    (tmp_path / 'last_checkpoint').write_text(named)
    with pytest.raises(ValueError, match=message):
        make_runner(tmp_path, resume=True).train()


def test_a_last_checkpoint_elsewhere_is_not_looked_for(tmp_path):
    (tmp_path / 'last_checkpoint').write_text('s3://runs/iter_4.pth')
    check_last_checkpoint(str(tmp_path))


def test_a_checkpoint_that_the_user_names_needs_no_last_checkpoint(tmp_path):
    make_runner(tmp_path).train()
    (tmp_path / 'last_checkpoint').write_text('/gone/iter_4.pth')
    named = str(tmp_path / 'iter_4.pth')
    longer = dict(type='IterBasedTrainLoop', max_iters=5, val_interval=100)
    make_runner(tmp_path, resume=True, load_from=named, train_cfg=longer).train()
    assert last(tmp_path).name == 'iter_5.pth'


def test_other_runners_take_the_hook_too(tmp_path):
    tiny = make_runner(tmp_path / 'other')
    hook = dict(
        type='mmattn.CheckpointHook', interval=1, by_epoch=False, max_keep_ckpts=1
    )
    runner = FlexibleRunner(
        model=tiny.model,
        work_dir=str(tmp_path / 'flexible'),
        train_dataloader=tiny._train_dataloader,
        train_cfg=dict(by_epoch=False, max_iters=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=hook),
    )
    runner.train()
    assert saved(tmp_path / 'flexible') == {'iter_2.pth', 'last_checkpoint'}


SAVE_UNTIL_KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import mmengine.runner.runner
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from tiny_run import make_runner
from mmattn.engine import read_checkpoint

mmengine.runner.runner.collect_env = dict  # it takes seconds

@HOOKS.register_module()
class Ready(Hook):
    priority = 'LOWEST'

    def __init__(self, pipe):
        self.pipe = pipe

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        os.write(self.pipe, b'1')

work_dir = Path({work_dir!r})
moments = random.Random(0)
seen = set()
for _ in range(6):
    started, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        loop = dict(type='IterBasedTrainLoop', max_iters=10**6, val_interval=10**6)
        model = dict(width=50_000)  # 5 MB a checkpoint: most of the time is saving
        runner = make_runner(
            work_dir, resume=True, train_cfg=loop, model=model, log_level='ERROR'
        )
        runner.register_hook(dict(type='Ready', pipe=ready))
        runner.train()
        os._exit(1)
    os.close(ready)
    os.read(started, 1)
    time.sleep(moments.uniform(0, 0.4))
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    named = Path((work_dir / 'last_checkpoint').read_text())
    seen.add(read_checkpoint(named)['meta']['iter'])
    there = sorted(path.name for path in work_dir.glob('iter_*'))
    assert len(there) <= 2, there
assert len(seen) > 3, seen
"""


def test_killed_at_any_moment_there_is_something_to_resume(tmp_path):
    code = SAVE_UNTIL_KILLED.format(work_dir=str(tmp_path / 'run'))
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=Path(__file__).parent,
        env=os.environ | {'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
