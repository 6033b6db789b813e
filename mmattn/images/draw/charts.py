"""Draw the confusion and the curves of an evaluation, and pictures side by side."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .overlays import Legend
from .style import DPI, SMALL, class_colors, styled

BACKGROUND = 'background'
MOST_NUMBERS = 25  # classes up to which cells have room for a percentage
CELL = 0.45  # inches
MOST_INCHES = 25.0  # of the cells together
LOWEST_TEXT = 3.0  # points, below which names cannot be read
MOST_CURVES = 10  # classes with a color of their own
PANEL = 4.0  # inches of a picture beside others
LINE, CHARACTER = 0.19, 0.065  # inches of a text of `SMALL` points


@styled
def draw_confusion(
    counts: np.ndarray, names: Sequence[str], out_file: Path, title: str = ''
):
    """Draw a confusion, in percent of each row.

    Names have the number of labels behind them. With many classes, numbers stand for
    the names.

    Args:
        counts: label by prediction, shape (C, C), or one more of each for the
            background.
        names: of the C classes.
        out_file: picture to write.
        title: above the picture, such as the thresholds.
    """
    from matplotlib.figure import Figure

    names = [*names, BACKGROUND][: len(counts)]
    side = min(max(4.0, CELL * len(names)), MOST_INCHES)
    figure = Figure(figsize=(side + 3, side + 1.5))
    axis = figure.subplots()
    totals = counts.sum(1)
    shares = 100 * counts / np.maximum(totals, 1)[:, None]
    image = axis.imshow(shares, cmap='Blues', vmin=0, vmax=100)
    figure.colorbar(image, label='percent of the row', shrink=0.8)
    axis.set(xlabel='prediction', ylabel='label')
    axis.set_title(title)
    points = min(SMALL + 1, 72 * side / len(names))
    if points >= LOWEST_TEXT:
        rows = [f'{n} ({t:,})' for n, t in zip(names, totals.tolist(), strict=True)]
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=points)
        axis.set_yticks(range(len(names)), rows, fontsize=points)
    if len(names) <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                share = shares[row, column]
                axis.text(
                    column,
                    row,
                    f'{share:.0f}' if share >= 1 else '<1',
                    ha='center',
                    va='center',
                    color='white' if share > 50 else 'black',
                )
    figure.savefig(out_file)


@styled
def draw_precision_recall(details: Mapping[str, Mapping], out_file: Path):
    """Draw precision over recall at an IoU of 0.5, for boxes and for masks.

    Args:
        details: of `mmattn.CocoMetric`.
        out_file: picture to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(details), 4.2))
    axes = figure.subplots(1, len(details), squeeze=False)[0]
    for axis, (kind, found) in zip(axes, details.items(), strict=True):
        curves = found['precision']
        names = list(found['classes'])
        known = [i for i in range(len(names)) if curves[:, i].max() > -1]
        few = 1 < len(known) <= MOST_CURVES
        left_out = f', {len(known)} of {len(names)} classes have objects'
        colors = [_unit(color) for color in class_colors(len(names))]
        for i in known:
            ap = found['classes'][names[i]]['mAP_50']
            axis.plot(
                found['recall'],
                curves[:, i],
                label=f'{names[i]}, AP50 {ap:.3f}' if few else None,
                color=colors[i] if few else '0.8',
                linewidth=1.5 if few else 1,
            )
        if known:
            mean = curves[:, known].mean(1)
            label = names[known[0]] if len(known) == 1 else 'mean of classes'
            if not few and len(known) > 1:
                axis.plot([], [], color='0.8', label='each class')
            axis.plot(
                found['recall'], mean, 'k', label=f'{label}, AP50 {mean.mean():.3f}'
            )
            axis.legend()
        axis.set(
            title=f'{kind}, IoU 0.5' + left_out * (len(known) < len(names)),
            xlabel='recall',
            ylabel='precision',
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
    figure.savefig(out_file)


def label_log(axis):
    """Label 1, 2 and 5 times each power of ten on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_formatter(NullFormatter())


def shown_at(picture: np.ndarray) -> float:
    """Return the factor by which `save_panels` shrinks a picture, at most 1."""
    return min(1.0, PANEL * DPI / max(picture.shape[:2]))


@styled
def save_panels(
    rows: Sequence[Sequence[tuple[np.ndarray, Legend]]],
    titles: Sequence[str],
    out_file: Path,
):
    """Write rows of pictures with all lines of their legends below them.

    Args:
        rows: RGB uint8 pictures with their legends.
        titles: of the columns.
        out_file: picture to write.
    """
    from matplotlib.figure import Figure

    heights = [
        PANEL * min(1, max(len(picture) / picture.shape[1] for picture, _ in row))
        + LINE * (1 + max(map(_lines, row)))
        for row in rows
    ]
    figure = Figure((PANEL * len(titles), sum(heights)))
    axes = figure.subplots(
        len(rows),
        len(titles),
        squeeze=False,
        subplot_kw=dict(xticks=[], yticks=[]),
        gridspec_kw=dict(height_ratios=heights),
    )
    for row, panels in zip(axes, rows, strict=True):
        for axis, (picture, legend) in zip(row, panels, strict=True):
            axis.imshow(picture)
            _write_below(axis, legend)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    figure.savefig(out_file)


def _columns(legend: Legend) -> int:
    longest = max((len(text) for text, _ in legend), default=0)
    return max(1, int(PANEL / CHARACTER) // (longest + 6))


def _lines(panel: tuple[np.ndarray, Legend]) -> int:
    return math.ceil(len(panel[1]) / _columns(panel[1]))


def _write_below(axis, legend: Legend):
    from matplotlib.patches import Patch

    if not legend:
        return
    handles = [
        Patch(color='none' if color is None else _unit(color), label=text)
        for text, color in legend
    ]
    axis.legend(
        handles=handles,
        loc='upper center',
        bbox_to_anchor=(0.5, 0),
        ncols=_columns(legend),
        frameon=False,
        handlelength=1,
        handleheight=1,
    )


def _unit(color: Sequence[int]) -> tuple[float, ...]:
    return tuple(channel / 255 for channel in color)
