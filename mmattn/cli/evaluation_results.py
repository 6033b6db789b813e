"""Figures of each class and the confusion of `mmattn test`, and its `results.json`."""

import json
import math
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner

from mmattn.errors import UserError

from ..evaluation import LabelConfusion
from ..files.atomic import write_atomically
from ..images.draw import draw_confusion, draw_precision_recall
from ..results.matching import MATCH
from ..results.tables import class_table

OURS = 'mmattn.CocoMetric'
COUNTS = 'LabelConfusion', 'mmattn.LabelConfusion'
RESULTS = 'results.json'
CONFUSION, CURVES = 'confusion_matrix.png', 'precision_recall.png'


def each_metric(evaluator: ConfigDict | list) -> list[ConfigDict]:
    return evaluator if isinstance(evaluator, list | tuple) else [evaluator]


def use_our_metric(cfg: Config):
    """Replace mmdet's CocoMetric by ours, which keeps what it counts by class.

    Raises:
        ValueError: the config has neither.
    """
    for metric in each_metric(cfg.test_evaluator):
        if metric.type in ('CocoMetric', 'mmdet.CocoMetric', OURS):
            metric.type = OURS
            return
    types = ', '.join(metric.type for metric in each_metric(cfg.test_evaluator))
    raise UserError(
        f'--per-class and --confusion require CocoMetric as test_evaluator, got {types}'
    )


def counting_metric(runner: Runner):
    """Return the metric of the runner that counts by class; add it for labels."""
    from ..evaluation import CocoMetric

    evaluator = runner.test_evaluator
    if runner.cfg.default_scope == 'mmdet':
        return next(m for m in evaluator.metrics if isinstance(m, CocoMetric))
    for metric in evaluator.metrics:
        if isinstance(metric, LabelConfusion):
            return metric
    metric = LabelConfusion()
    metric.dataset_meta = evaluator.dataset_meta
    evaluator.metrics.append(metric)
    return metric


def write_results(
    runner: Runner,
    metrics: Mapping[str, float],
    started: float,
    *,
    metric=None,
    per_class: bool = False,
    confusion: bool = False,
) -> Path:
    """Write `results.json` into the work dir, and the pictures that are asked for.

    Args:
        metrics: what the runner returned.
        started: `time.monotonic()` before the test.
        metric: what `counting_metric` returned, None without the next two.
        per_class: print and write figures of each class, and draw their curves.
        confusion: write and draw the confusion.
    """
    folder = Path(runner.work_dir)
    content = dict(
        config=runner.cfg.filename,
        checkpoint=runner.cfg.load_from,
        date=datetime.now().isoformat(timespec='seconds'),
        images=len(runner.test_dataloader.dataset),
        seconds=round(time.monotonic() - started, 1),
        device=str(next(runner.model.parameters()).device),
        torch=torch.__version__,
        metrics=dict(metrics),
    )
    if per_class and (figures := metric.class_rows):
        for kind, rows in figures.items():
            print(f'{kind} of each class\n{class_table(rows)}')
        content['classes'] = figures
        if not isinstance(metric, LabelConfusion):
            draw_precision_recall(metric.details, folder / CURVES)
    if confusion and metric.confusion is not None:
        names = list(metric.dataset_meta['classes'])
        title = 'percent of the pixels or images of each row, blank: none'
        if not isinstance(metric, LabelConfusion):
            title = f'score >= {metric.score_thr}, IoU >= {MATCH}; blank: none'
        draw_confusion(metric.confusion, names, folder / CONFUSION, title)
        content['confusion'] = dict(classes=names, counts=metric.confusion.tolist())
    path = folder / RESULTS
    write_atomically(path, (json.dumps(_plain(content), indent=2) + '\n').encode())
    return path


def _plain(value):
    """Return a value for JSON, which has no NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, 'item'):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
