"""Draw the confusion and the precision-recall curves of an evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

BACKGROUND = 'background'
MOST_NUMBERS = 25  # classes up to which cells have room for their count
INCHES = 0.45  # of a cell


def draw_confusion(counts: np.ndarray, names: Sequence[str], out_file: Path):
    """Draw a confusion with its counts, each row colored by its shares.

    Args:
        counts: label by prediction, shape (C, C), or one more of each for the
            background.
        names: of the C classes.
        out_file: picture to write.
    """
    from matplotlib.figure import Figure

    names = [*names, BACKGROUND][: len(counts)]
    side = max(4.0, INCHES * len(names))
    figure = Figure(figsize=(side + 1.5, side + 0.8), layout='constrained')
    axis = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axis.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    figure.colorbar(image, label='share of the row')
    axis.set(xlabel='prediction', ylabel='label')
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    if len(names) <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = 'white' if shares[row, column] > 0.5 else 'black'
                axis.text(
                    column, row, f'{count:,}', ha='center', va='center', color=color
                )
    figure.savefig(out_file, dpi=120)


def draw_precision_recall(details: Mapping[str, Mapping], out_file: Path):
    """Draw precision over recall at an IoU of 0.5, for boxes and for masks.

    Args:
        details: of `mmattn.CocoMetric`.
        out_file: picture to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(details), 4.2), layout='constrained')
    axes = figure.subplots(1, len(details), squeeze=False)[0]
    for axis, (kind, found) in zip(axes, details.items(), strict=True):
        curves = found['precision']
        names = list(found['classes'])
        known = [i for i in range(len(names)) if curves[:, i].max() > -1]
        few = 1 < len(known) <= 10
        for i in known:
            ap = found['classes'][names[i]]['mAP_50']
            axis.plot(
                found['recall'],
                curves[:, i],
                label=f'{names[i]}, AP50 {ap:.3f}' if few else None,
                color=None if few else '0.8',
                linewidth=1,
            )
        if known:
            mean = curves[:, known].mean(1)
            label = names[known[0]] if len(known) == 1 else 'mean of classes'
            axis.plot(
                found['recall'], mean, 'k', label=f'{label}, AP50 {mean.mean():.3f}'
            )
            axis.legend(fontsize='small')
        axis.set(
            title=f'{kind}, IoU 0.5',
            xlabel='recall',
            ylabel='precision',
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
    figure.savefig(out_file, dpi=120)
