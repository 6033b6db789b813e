"""mmengine's checkpoint hook, made safe against kills at any moment.

mmengine removes the outdated checkpoint, then writes the new one, then truncates
`last_checkpoint` to name it. Our hook writes the new one, names it, and then removes
the outdated one. With `mmattn.Runner` each write is atomic.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from string import Formatter

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook as MMEngineCheckpointHook

from mmattn.registry import HOOKS

from ..files.atomic import remove_unfinished, write_atomically
from ..files.last_checkpoint import LAST

STOPPED = 'stopped.pth'


class _DeferredRemovals:
    """Collect the removals of a file backend until `carry_out`.

    Args:
        backend: the file backend.
        is_own: whether a path may be removed; `isfile` and `isdir` deny others.
    """

    def __init__(self, backend, is_own: Callable[[str], bool]):
        self.backend = backend
        self.is_own = is_own
        self.paths = []

    def isfile(self, path: str) -> bool:
        return self.is_own(path) and self.backend.isfile(path)

    def isdir(self, path: str) -> bool:
        return self.is_own(path) and self.backend.isdir(path)

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str):
        self.paths.append(path)

    rmtree = remove

    def carry_out(self, keep=()):
        for path in self.paths:
            if path not in keep:
                _remove(self.backend, path)


def _remove(backend, path: str):
    if backend.isfile(path):
        backend.remove(path)
    elif backend.isdir(path):  # DeepSpeed's checkpoints
        backend.rmtree(path)


@HOOKS.register_module()
class CheckpointHook(MMEngineCheckpointHook):
    """Save checkpoints as mmengine's `CheckpointHook` does, with the same arguments.

    A resumed run reads the names of the files to remove from its checkpoint. It removes
    only files in its own folder that are named as this hook names files.

    Raises:
        OSError: a checkpoint cannot be written while training, for example to a full
            disk. The one before it and `last_checkpoint` are untouched.
    """

    def before_train(self, runner):
        _drop_strange_names(runner)
        super().before_train(runner)
        self._remove_unfinished(runner)

    def after_val_epoch(self, runner, metrics: dict):
        if hasattr(self, 'file_backend'):  # otherwise this is `runner.val()`
            super().after_val_epoch(runner, metrics)

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict):
        outdated = None
        if self.max_keep_ckpts > 0 and step not in list(self.keep_ckpt_ids)[-1:]:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                outdated = self.keep_ckpt_ids.popleft()
            self.keep_ckpt_ids.append(step)
            # The outdated file still exists when this list is saved. A run that is
            # killed before the removal finds it in the list when it resumes.
            kept = [outdated] if outdated is not None else []
            runner.message_hub.update_info(
                'keep_ckpt_ids', kept + list(self.keep_ckpt_ids)
            )
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self._save(
            runner,
            self.last_ckpt,
            meta=meta,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
        )
        if not is_main_process():
            return
        names = [STOPPED]
        if outdated is not None:
            names.append(self.filename_tmpl.format(outdated))
        for name in names:
            _remove(self.file_backend, self.file_backend.join_path(self.out_dir, name))
        self._remove_unfinished(runner)

    def save_stopped(self, runner, meta: dict) -> str:
        """Save a run that is being stopped, and return the path.

        `last_checkpoint` names the file. The next regular save removes it.
        """
        path = self.file_backend.join_path(self.out_dir, STOPPED)
        self._save(runner, path, meta=meta)
        return path

    def _save(self, runner, path: str, **options):
        """Save a checkpoint, and let `last_checkpoint` name it."""
        runner.save_checkpoint(
            self.out_dir,
            os.path.basename(path),
            file_client_args=self.file_client_args,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **options,
            **self.args,
        )
        if is_main_process():
            write_atomically(Path(runner.work_dir, LAST), path.encode())

    def _save_best_checkpoint(self, runner, metrics: dict):
        backend = self.file_backend
        self.file_backend = removals = _DeferredRemovals(backend, self._is_own)
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = backend
        removals.carry_out(keep=self.best_checkpoints())

    def _is_own(self, path: str) -> bool:
        """Return whether `path` is in the folder of this run and named by this hook."""
        folder, name = os.path.split(path)
        own = ''.join(
            re.escape(text) + ('' if field is None else r'\d+')
            for text, field, *_ in Formatter().parse(self.filename_tmpl)
        )
        return re.fullmatch(f'(best_.+_)?{own}', name) is not None and (
            os.path.realpath(folder) == os.path.realpath(self.out_dir)
        )

    def best_checkpoints(self) -> set[str]:
        """Return the paths of the best checkpoints, one for each metric."""
        paths = getattr(self, 'best_ckpt_path_dict', {})
        return {getattr(self, 'best_ckpt_path', None), *paths.values()} - {None}

    def _remove_unfinished(self, runner):
        if not is_main_process():
            return
        remove_unfinished(runner.work_dir)
        if isinstance(self.file_backend, LocalBackend):
            remove_unfinished(self.out_dir)


def _drop_strange_names(runner):
    """Drop steps that are not integers and paths that are not strings.

    A checkpoint can hold anything instead, for example `'../other'` as a step.
    """
    info = runner.message_hub.runtime_info
    for key, value in list(info.items()):
        if key == 'keep_ckpt_ids':
            steps = list(value) if isinstance(value, (list, tuple, deque)) else [value]
            kept = [step for step in steps if type(step) is int and step >= 0]
            if len(kept) < len(steps):
                runner.logger.warning(f'Ignoring {key}={value!r} of the checkpoint')
            info[key] = kept
        elif key.startswith('best_ckpt') and not isinstance(value, str):
            runner.logger.warning(f'Ignoring {key}={value!r} of the checkpoint')
            del info[key]


def safe_checkpoint_hook(hooks: dict | None) -> dict:
    """Return a config's default hooks with our checkpoint hook for mmengine's."""
    hooks = dict(hooks or {})
    checkpoint = hooks.get('checkpoint', dict(type='CheckpointHook', interval=1))
    if isinstance(checkpoint, dict) and checkpoint.get('type') == 'CheckpointHook':
        hooks['checkpoint'] = dict(checkpoint, type='mmattn.CheckpointHook')
    return hooks
