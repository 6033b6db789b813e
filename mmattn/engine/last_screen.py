"""Say at the end of a training how good each class is, and what it leaves."""

from collections.abc import Mapping
from pathlib import Path

from mmengine.hooks import Hook

from .checkpoint_hook import CheckpointHook

DIGITS = 3


def class_rows(metric) -> dict[str, Mapping[str, Mapping[str, float]]]:
    """Return the figures of each class that a metric has counted, by their kind.

    `mmattn.CocoMetric` has them under `details`, `mmattn.LabelConfusion` under
    `classes`; other metrics have none.
    """
    details = getattr(metric, 'details', None)
    if isinstance(details, Mapping):
        return {kind: found['classes'] for kind, found in details.items()}
    classes = getattr(metric, 'classes', None)
    return {'labels': classes} if isinstance(classes, Mapping) and classes else {}


def table(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a table with a line for each class."""
    items = list(next(iter(rows.values())))
    width = max(map(len, [*rows, 'class']))
    lines = [f'{"class":<{width}}  ' + '  '.join(items)]
    for name, row in rows.items():
        figures = '  '.join(f'{row[i]:>{len(i)}.{DIGITS}f}' for i in items)
        lines.append(f'{name:<{width}}  {figures}')
    return lines


class LastScreenHook(Hook):
    """Log the figures of each class, the best checkpoint and the next commands."""

    priority = 'LOWEST'

    def after_train(self, runner):
        evaluator = getattr(runner.val_loop, 'evaluator', None)
        for metric in getattr(evaluator, 'metrics', ()):
            for kind, rows in class_rows(metric).items():
                title = f'{kind} of each class, at the last validation'
                runner.logger.info('\n'.join([title, *table(rows)]))
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
