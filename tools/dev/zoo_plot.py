"""Draw the papers' accuracies over FLOPs, ours beside those of other authors.

python -m tools.dev.zoo_plot    # writes docs/images/zoo_*.png
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mmattn.images.draw import label_log, styled
from tools.dev.metafiles import ROOT
from tools.dev.zoo import VARIANT, Network, networks

FOLDER = ROOT / 'docs/images'
WIDTH, DPI = 5, 200  # inches, of which a phone shows 358 pixels
# By the beginning of a config: name, color and marker; one color for each paper.
FAMILIES = {
    'ivit': ('IViT', 'C0', 'o'),
    'lisanet_hybrid': ('HyLiSANet', 'C3', 's'),
    'lisanet': ('LiSANet', 'C3', 'D'),
    'hmait': ('H-MaiT', 'C2', '^'),
    'mait': ('MaiT', 'C2', 'v'),
    'pvt_v2': ('PVT v2', 'C1', 'P'),
    'pvt': ('PVT', 'C1', 'X'),
    'dat_plus_plus': ('DAT++', 'C4', 'h'),
    'dat': ('DAT', 'C4', '>'),
}
# A picture has panels: a title, task and method, the figure of the vertical axis, and
# the limits of FLOPs and figures.
PICTURES = {
    'classification': [
        ('ImageNet Top-1 (%)', '', 'Top 1 Accuracy', (1.7, 20), (78.2, 85.5))
    ],
    'detection': [
        ('Mask R-CNN 1x: box AP', 'mask_rcnn 1x', 'box AP', (180, 580), (36, 51)),
        ('Mask R-CNN 3x: box AP', 'mask_rcnn 3x', 'box AP', (180, 580), (39, 52)),
    ],
    'segmentation': [
        ('Semantic FPN 80k: mIoU', 'sem_fpn 80k', 'mIoU', (130, 600), (35, 51.5)),
        (
            'UperNet 160k: multi-scale mIoU',
            'upernet 160k',
            'mIoU(ms)',
            (900, 1420),
            (45, 53.2),
        ),
    ],
}


def family_of(network: Network) -> str:
    """Return the family of one of ours, else ''."""
    found = (key for key in FAMILIES if network.config and network.name.startswith(key))
    return next(found, '')


def line_of(network: Network) -> str:
    """Return what networks of several sizes have in common."""
    name = network.name.removesuffix('-h32')
    return family_of(network) or re.split(r'-(?=[^-]*$)', name)[0]


def place_labels(axis, labels: Sequence[tuple], points: Sequence[tuple]):
    """Write each label beside its point where it covers no other label or point."""
    points = [axis.transData.transform(xy) for xy in points]
    frame, taken = axis.get_window_extent(), []
    sides = (5, -3, 'left'), (-5, -3, 'right'), (0, 5, 'center'), (0, -12, 'center')
    for x, y, text in labels:
        for dx, dy, side in sides:
            style = dict(textcoords='offset points', ha=side, color='0.35')
            label = axis.annotate(text, (x, y), (dx, dy), **style)
            box = label.get_window_extent()
            inside = frame.contains(*box.min) and frame.contains(*box.max)
            covers = [box.overlaps(other) for other in taken]
            if inside and not any(covers + [box.contains(*point) for point in points]):
                taken.append(box)
                break
            label.remove()


def draw_panel(axis, rows: Sequence[Network], figure: str) -> tuple[list, list]:
    """Draw networks as lines by family, those of others in gray.

    Return the labels of the latter, those first that most tables have, and what labels
    keep clear of.
    """
    lines, tables = {}, Counter()
    for row in rows:
        tables[line_of(row)] += len(row.sources)
        if (value := row.number(figure)) is not None:
            lines.setdefault(line_of(row), []).append((row.number('flops'), value))
    labels, taken = [], []
    for key, points in lines.items():
        x, y = zip(*points, strict=True)
        if key in FAMILIES:
            name, color, marker = FAMILIES[key]
            axis.plot(x, y, c=color, marker=marker, ms=7, label=name, zorder=3)
            steps = np.linspace(0, len(x) - 1, 30 * len(x))
            taken += np.stack(
                [np.interp(steps, range(len(x)), v) for v in (x, y)], 1
            ).tolist()
        else:
            axis.plot(x, y, c='0.65', marker='o', ms=3, lw=0.7)
            labels.append((*points[-1], key))
            taken += points
    return sorted(labels, key=lambda label: -tables[label[2]]), taken


@styled
def draw(task: str):
    """Write the picture of a task."""
    panels = PICTURES[task]
    figure = Figure((WIDTH, 0.9 + 3.6 * len(panels)))
    axes, waiting = figure.subplots(len(panels), squeeze=False)[:, 0], []
    for axis, (title, method, key, flops, limits) in zip(axes, panels, strict=True):
        rows = [
            row
            for row in networks(task)
            if row.method == method
            and not VARIANT.search(row.name)
            and (family_of(row) or not (row.config or row.name.startswith('PVT')))
        ]
        waiting.append(draw_panel(axis, rows, key))
        axis.set(title=title, xlabel='FLOPs (G)', xlim=flops, ylim=limits)
        if not method:
            axis.set_xscale('log')
            label_log(axis.xaxis)
        axis.grid(alpha=0.3)
    shown = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        shown = dict(zip(names, handles, strict=True)) | shown
    place = dict(loc='outside lower center', ncols=3, frameon=False)
    figure.legend(shown.values(), shown, **place)
    FigureCanvasAgg(figure).draw()
    for axis, labels in zip(axes, waiting, strict=True):
        place_labels(axis, *labels)
    figure.savefig(FOLDER / f'zoo_{task}.png', dpi=DPI)


if __name__ == '__main__':
    for task in PICTURES:
        draw(task)
