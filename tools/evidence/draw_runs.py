"""Draw the runs of a claim: each seed a dot, the seeds of a pair joined by a line."""

from math import ceil
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt

COLUMNS = 5  # panels side by side
MEAN, SEED = '#b5312f', '#6f7f8f'


def draw(results, out: Path) -> None:
    """Write a picture with a panel for each metric of the comparisons.

    Args:
        results: a `report.Results` with at least one run.
        out: path of the png file.
    """
    metrics = [
        metric
        for metric in results.metrics
        if any(metric in run.metrics for run in results.runs.values())
    ]
    names = list(results.claim.variants)
    columns = min(COLUMNS, len(metrics))
    rows = ceil(len(metrics) / columns)
    width = max(5 if columns == 1 else 3, 1.5 + 0.7 * len(names))
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(width * columns, 4 * rows),
        squeeze=False,
        layout='constrained',
    )
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    for axis, metric in zip(axes.flat, metrics, strict=False):
        by_name = [results.values(name, metric) for name in names]
        for seed in sorted({seed for values in by_name for seed in values}):
            points = [(x, v[seed]) for x, v in enumerate(by_name) if seed in v]
            axis.plot(*zip(*points, strict=True), 'o-', color=SEED, lw=0.6, alpha=0.6)
        for x, values in enumerate(by_name):
            if values:
                axis.hlines(mean(values.values()), x - 0.3, x + 0.3, color=MEAN, lw=2)
        axis.set_xticks(range(len(names)), names, rotation=30, ha='right')
        axis.set(ylabel=metric, xlim=(-0.5, len(names) - 0.5))
        axis.grid(axis='y', alpha=0.3)
    figure.suptitle('each dot is a seed, each line joins one; red: means', fontsize=9)
    figure.savefig(out, dpi=110)
    plt.close(figure)
