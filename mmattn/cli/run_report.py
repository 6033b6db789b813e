"""Curves, pictures and `report.md` of a run."""

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..analysis.diagnosis import Finding
from ..analysis.samples import Sample, Validation
from ..images.draw import label_log, save_panels, styled
from ..results import Detections
from ..results.panels import panel
from .evaluation_results import CONFUSION, CURVES, RESULTS

RANGE = 100  # times, by which the learning rate of a range test rises at least
MANY_TIMES = 5  # of the smallest loss, which call for a logarithmic axis
LOWEST_TOP = 0.1  # of an axis of metrics
METRICS = {
    'mmdet': ('coco/bbox_mAP', 'coco/segm_mAP'),
    'mmpretrain': ('accuracy/top1',),
    'mmseg': ('mIoU', 'aAcc'),
}


@styled
def draw_curves(records: list[dict], metrics: tuple[str, ...], out_file: Path):
    """Plot the loss and the metrics of a run over its iterations.

    Axes begin at 0. The axis of a loss whose largest value is many times its
    smallest is logarithmic. Metrics of objects that the data lack are left out.
    """
    figure = Figure((7, 4))
    loss_axis = figure.subplots()
    loss_axis.set(xlabel='iteration', ylabel='training loss')
    losses = [(r['step'], r['loss']) for r in records if 'loss' in r]
    if losses:
        loss_axis.plot(
            *zip(*losses, strict=True),
            color='0.5',
            marker='o' if len(losses) == 1 else None,
            label=f'training loss{_only(losses)}',
        )
        values = [loss for _, loss in losses]
        if 0 < MANY_TIMES * min(values) < max(values):
            loss_axis.set_yscale('log')
            label_log(loss_axis.yaxis)
        else:
            loss_axis.set_ylim(bottom=min(0, *values), top=None)
    metric_axis = loss_axis.twinx()
    metric_axis.set(ylabel='validation metric')
    highest = LOWEST_TOP
    for metric in metrics:
        points = [(r['step'], r[metric]) for r in records if r.get(metric, -1) != -1]
        if points:
            label = f'{metric.split("/")[-1]}, last {points[-1][1]:.3g}{_only(points)}'
            metric_axis.plot(*zip(*points, strict=True), marker='o', label=label)
        highest = max([highest, *(value for _, value in points)])
    metric_axis.set_ylim(bottom=0, top=1.05 * highest)
    loss_axis.set_xlim(left=0)
    figure.legend(loc='outside upper center', ncols=3)
    figure.savefig(out_file)


@styled
def draw_rates(records: list[dict], out_file: Path) -> bool:
    """Plot the loss over the learning rate, and return whether it is a range test.

    In a range test the learning rate rises from the first record to the last, at least
    100 times.
    """
    points = [(r['lr'], r['loss']) for r in records if 'lr' in r and 'loss' in r]
    rates = [rate for rate, _ in points]
    if not rates or sorted(rates) != rates or not 0 < RANGE * rates[0] <= rates[-1]:
        return False
    figure = Figure((7, 4))
    axis = figure.subplots()
    axis.plot(*zip(*points, strict=True), color='0.3')
    axis.set(xscale='log', xlabel='learning rate', ylabel='training loss')
    figure.savefig(out_file)
    return True


def _only(points: list) -> str:
    return ', one value' if len(points) == 1 else ''


def draw_samples(
    run: Validation, indices: Sequence[int], score_thr: float, out_file: Path
):
    """Draw validation images, each with ground truth and prediction."""
    rows = []
    for index in indices:
        image, _, truth, found = run.predict(index)
        rows.append([(image, ()), panel(truth, image), panel(found, image, score_thr)])
    least = f', score >= {score_thr:g}' if isinstance(found, Detections) else ''
    save_panels(rows, ('image', 'ground truth', f'prediction{least}'), out_file)


def draw_worst(
    run: Validation, samples: Sequence[Sample], count: int, score_thr: float, out: Path
) -> list[list[str]]:
    """Draw the worst images, the worst first, and return a row of a table for each."""
    worst = sorted(samples, key=Sample.badness, reverse=True)[:count]
    draw_samples(run, [sample.index for sample in worst], score_thr, out)
    return [[sample.path, sample.described()] for sample in worst]


def markdown_table(rows: list[list], header: list[str]) -> list[str]:
    """Return the lines of a table; numbers have three digits.

    None, and -1, which COCO's metrics give without such objects, become `none`.
    """

    def cell(value) -> str:
        if value is None or value == -1:
            return 'none'
        return f'{value:.3f}' if isinstance(value, float) else str(value)

    lines = [header, ['---'] * len(header), *rows]
    return [f'| {" | ".join(map(cell, line))} |' for line in lines] + ['']


def write_report(
    work_dir: Path,
    name: str,
    summary: dict | None,
    findings: Sequence[Finding] = (),
    worst: Sequence[list[str]] = (),
    checkpoint: Path | None = None,
) -> Path:
    """Write `report.md` of what is in the work dir.

    Args:
        summary: what `summarize` returns, None without a log.
        worst: path and errors of the worst images.
        checkpoint: that predicted.
    """
    lines = [f'# {name}', '']
    if summary is not None:
        facts = {key: value for key, value in summary.items() if key != 'metrics'}
        facts |= summary['metrics']
        lines += markdown_table(list(map(list, facts.items())), ['training', ''])
    if findings:
        lines += ['## Diagnosis', '', *(f'- **{f.cause}**: {f.text}' for f in findings)]
        lines += ['']
    lines += _pictures(work_dir, 'curves.png', 'learning_rates.png')
    results = work_dir / RESULTS
    if results.is_file():
        found = json.loads(results.read_text())
        facts = {k: found[k] for k in found if k not in ('classes', 'confusion')}
        facts |= facts.pop('metrics')
        lines += markdown_table(list(map(list, facts.items())), ['test', ''])
        for kind, classes in found.get('classes', {}).items():
            items = list(next(iter(classes.values())))
            rows = [[label, *row.values()] for label, row in classes.items()]
            lines += markdown_table(rows, [kind, *items])
        # Pictures of an earlier test would stand beside figures of another.
        lines += _pictures(work_dir, CURVES) if 'classes' in found else []
        lines += _pictures(work_dir, CONFUSION) if 'confusion' in found else []
    else:
        command = f'mmattn test {work_dir} --per-class --confusion'
        lines += [f'Not tested yet: `{command}` adds figures of each class.', '']
    if checkpoint is not None:
        lines += [f'Predictions of `{checkpoint.name}`:', '']
        lines += _pictures(work_dir, 'predictions.png')
    if worst:
        lines += ['## Worst images', '']
        lines += markdown_table(worst, ['image', 'errors'])
        lines += _pictures(work_dir, 'worst.png')
    report = work_dir / 'report.md'
    report.write_text('\n'.join(lines))
    return report


def _pictures(work_dir: Path, *names: str) -> list[str]:
    return [
        f'![{Path(name).stem}]({name})\n'
        for name in names
        if (work_dir / name).is_file()
    ]
