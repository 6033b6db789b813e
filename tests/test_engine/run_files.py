"""The checkpoints in a work dir, and a run that keeps its best one."""

from pathlib import Path

from tiny_run import make_runner


def last(work_dir) -> Path:
    return Path((work_dir / 'last_checkpoint').read_text())


def files(folder) -> set[str]:
    names = {path.name for path in folder.iterdir() if path.is_file()}
    return names - {'.mmattn-lock'}


def saved(folder) -> set[str]:
    return {name for name in files(folder) if not name.endswith('.py')}


def best_run(work_dir, max_iters=3, **options):
    hook = dict(type='CheckpointHook', interval=1, by_epoch=False, save_best='score')
    return make_runner(
        work_dir,
        val=True,
        max_iters=max_iters,
        val_interval=1,
        default_hooks=dict(checkpoint=dict(hook, rule='greater', max_keep_ckpts=1)),
        **options,
    )
