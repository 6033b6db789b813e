"""Draw the papers' accuracies over FLOPs, ours beside those of other authors.

python -m tools.dev.zoo_plot    # writes docs/images/zoo_*.png
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mmattn.images.draw.style import FIRST
from tools.dev.metafiles import ROOT
from tools.dev.zoo import VARIANT, Network, networks

FOLDER = ROOT / 'docs/images'
# On a phone, 358 pixels show a picture of 5 inches: 10 points are 9.9 pixels there.
WIDTH, TEXT, DPI = 5, 10, 200
ORANGE, _, GREEN, _, BLUE, RED, PINK = (tuple(c / 255 for c in rgb) for rgb in FIRST)
# By the beginning of a config: name, color and marker; one color for each paper.
FAMILIES = {
    'ivit': ('IViT', BLUE, 'o'),
    'lisanet_hybrid': ('HyLiSANet', RED, 's'),
    'lisanet': ('LiSANet', RED, 'D'),
    'hmait': ('H-MaiT', GREEN, '^'),
    'mait': ('MaiT', GREEN, 'v'),
    'pvt_v2': ('PVT v2', ORANGE, 'P'),
    'pvt': ('PVT', ORANGE, 'X'),
    'dat_plus_plus': ('DAT++', PINK, 'h'),
    'dat': ('DAT', PINK, '>'),
}
GRAY = '0.65'
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


def between(first: tuple, second: tuple, count: int = 30) -> list[tuple[float, float]]:
    """Return points of a line, which labels keep clear of."""
    return [
        tuple(a + (b - a) * k / count for a, b in zip(first, second, strict=True))
        for k in range(1, count)
    ]


def place_labels(axis, labels: Sequence[tuple[float, float, str]]):
    """Write each label beside its point where it covers no other label or point."""
    renderer = axis.figure.canvas.get_renderer()
    points = [axis.transData.transform(xy) for xy in axis.all_points]
    frame, taken = axis.get_window_extent(), []
    for x, y, text in labels:
        for dx, dy, side in (
            (5, -3, 'left'),
            (-5, -3, 'right'),
            (0, 5, 'center'),
            (0, -12, 'center'),
        ):
            label = axis.annotate(
                text,
                (x, y),
                (dx, dy),
                textcoords='offset points',
                ha=side,
                fontsize=TEXT - 0.5,
                color='0.35',
            )
            box = label.get_window_extent(renderer)
            corners = frame.contains(*box.min) and frame.contains(*box.max)
            if corners and not any(
                [box.overlaps(other) for other in taken]
                + [box.contains(*point) for point in points]
            ):
                taken.append(box)
                break
            label.remove()


def draw_panel(axis, rows: Sequence[Network], figure: str) -> list[tuple]:
    """Draw networks as lines by family, those of others in gray.

    Return the labels of the latter, those first that most tables have.
    """
    lines, tables = {}, {}
    for row in rows:
        tables[line_of(row)] = tables.get(line_of(row), 0) + len(row.sources)
        if (value := row.number(figure)) is not None:
            lines.setdefault(line_of(row), []).append((row.number('flops'), value))
    axis.all_points, labels = [], []
    for key, points in sorted(lines.items(), key=lambda line: line[0] in FAMILIES):
        name, color, marker = FAMILIES.get(key, (key, GRAY, 'o'))
        ours = key in FAMILIES
        axis.plot(
            *zip(*points, strict=True),
            color=color,
            marker=marker,
            markersize=7 if ours else 3,
            lw=1.6 if ours else 0.7,
            label=name if ours else None,
            zorder=3 if ours else 2,
        )
        axis.all_points += points
        if ours:
            axis.all_points += [
                xy for pair in pairwise(points) for xy in between(*pair)
            ]
        labels += [] if ours else [(*points[-1], key)]
    return sorted(labels, key=lambda label: -tables[label[2]])


def draw(task: str) -> Figure:
    """Return the picture of a task."""
    panels = PICTURES[task]
    figure = Figure((WIDTH, 0.9 + 3.6 * len(panels)), dpi=DPI, layout='constrained')
    handles = {}
    waiting = []
    for axis, (title, method, key, flops, limits) in zip(
        figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
    ):
        rows = [
            row
            for row in networks(task)
            if row.method == method
            and not VARIANT.search(row.name)
            and (family_of(row) or not (row.config or row.name.startswith('PVT')))
        ]
        waiting.append((axis, draw_panel(axis, rows, key)))
        axis.set_title(title, fontsize=TEXT + 1)
        axis.set_xlabel('FLOPs (G)', fontsize=TEXT)
        axis.tick_params(labelsize=TEXT)
        axis.set(xlim=flops, ylim=limits)
        if not method:
            axis.set_xscale('log')
            axis.set_xticks([2, 4, 8, 16], ['2', '4', '8', '16'], fontsize=TEXT)
            axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, line)
    names = [name for name, *_ in FAMILIES.values() if name in handles]
    figure.legend(
        [handles[name] for name in names],
        names,
        loc='outside lower center',
        ncols=3,
        fontsize=TEXT,
        frameon=False,
    )
    FigureCanvasAgg(figure).draw()
    for axis, labels in waiting:
        place_labels(axis, labels)
    return figure


if __name__ == '__main__':
    for task in PICTURES:
        draw(task).savefig(FOLDER / f'zoo_{task}.png')
