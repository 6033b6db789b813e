"""Say at the end of a training how good each class is, and what it leaves."""

from pathlib import Path

from mmengine.hooks import Hook

from .checkpoint_hook import CheckpointHook


class LastScreenHook(Hook):
    """Log the figures of each class, the best checkpoint and the next commands."""

    priority = 'LOWEST'

    def after_train(self, runner):
        from ..results.tables import class_table  # not at the start of each training

        evaluator = getattr(runner.val_loop, 'evaluator', None)
        for metric in getattr(evaluator, 'metrics', ()):
            for kind, rows in getattr(metric, 'class_rows', {}).items():
                title = f'{kind} of each class, at the last validation'
                runner.logger.info(f'{title}\n{class_table(rows)}')
        best = [
            path
            for hook in runner.hooks
            if isinstance(hook, CheckpointHook)
            for path in sorted(hook.best_checkpoints())
        ]
        for path in best:
            runner.logger.info(f'best checkpoint: {path}')
        folder = runner.work_dir
        if best or any(Path(folder).glob('*.pth')):
            runner.logger.info(
                f'next: mmattn test {folder} --per-class --confusion, '
                f'mmattn report {folder}, mmattn predict {folder} IMAGES'
            )
