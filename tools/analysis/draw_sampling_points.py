"""Draw where deformable attention samples its keys, over the image.

    draw_sampling_points.py CONFIG IMAGE --checkpoint FILE

writes one panel for each layer (a row) and offset group, as in the figures of "Vision
Transformer with Deformable Attention" (https://arxiv.org/abs/2201.00520). Crosses are
the uniform grid that the offsets start from. Lines lead from there to the sampled
points, which are dots in the color of their group. The area of a dot is the attention
that it receives from all queries, or from the pixel --query, which has a red star. Each
panel has its own scale. The largest attention is written below it, as a multiple of
the mean.

The config may be of any mm package. Its backbone must use the `DeformableAttention` of
DAT and DAT++: see mmattn/analysis/sampling_points.py.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from mmattn.analysis import SamplingPoints, sampling_points
from mmattn.analysis.image_in_model import (
    ImageInModel,
    add_query,
    choose,
    load_model,
    make_model_parser,
)
from mmattn.cli.terminal import run_main

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

MAX_LAYERS = 4
MAX_GROUPS = 4
PANEL_INCHES = 3.2
TITLE_INCHES = 0.6
MARGIN_INCHES = 1.0
LARGEST_DOT = 150  # square points
ALL_DOTS = 30_000  # square points that they would have together at most
WHITEST = 400  # of a pixel's 255, so that white is gray


def draw(
    model: ImageInModel,
    query: tuple[int, int] | None,
    layers: Sequence[int] | None,
    groups: Sequence[int] | None,
    out: Path,
):
    """Draw one row for each layer, with one column for each of its groups."""
    place = None if query is None else model.place(*query)
    found = sampling_points(model.backbone, model.inputs, place)
    rows = []
    for index in choose(
        layers, len(found), f'deformable layers of {model.label}', MAX_LAYERS
    ):
        count = len(found[index].points)
        first = range(min(count, MAX_GROUPS)) if groups is None else groups
        what = f'groups of {found[index].layer} of {model.label}'
        rows.append((index, found[index], choose(first, count, what, MAX_GROUPS)))
    columns = max(len(chosen) for _, _, chosen in rows)
    height, width = model.picture.shape[:2]
    row_inches = PANEL_INCHES * height / width + TITLE_INCHES
    figure, axes = plt.subplots(
        len(rows),
        columns,
        figsize=(columns * PANEL_INCHES, len(rows) * row_inches + MARGIN_INCHES),
        layout='constrained',
        squeeze=False,
    )
    figure.suptitle(model.label, fontsize=10, wrap=True)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for line, (index, points, chosen) in zip(axes, rows, strict=True):
        for axis, group in zip(line, chosen, strict=False):
            _draw_panel(axis, model, points, group)
            name = points.layer.removesuffix('.attn')  # the block's
            axis.set_title(f'{index}: {name}, group {group}', fontsize=10)
    figure.legend(handles=_legend(query), loc='outside lower center', ncols=3)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)
    plt.close(figure)


def _draw_panel(axis: Axes, model: ImageInModel, points: SamplingPoints, group: int):
    """Draw one group; points outside the image, which sample zeros, are not clipped."""
    axis.imshow(model.picture.mean(2), cmap='gray', vmin=0, vmax=WHITEST)
    weights = points.weights[group].numpy()
    color = f'C{group % 10}'
    # Pixels are around integers.
    grid, places = (x.numpy() - 0.5 for x in (points.references, points.points[group]))
    lines = np.stack([grid, places], axis=1)[..., ::-1]
    axis.add_collection(
        LineCollection(lines, colors=color, linewidths=1, clip_on=False), autolim=False
    )
    style = dict(clip_on=False, zorder=3)
    axis.scatter(*grid.T[::-1], s=12, c='white', marker='+', linewidths=1, **style)
    largest = min(LARGEST_DOT, ALL_DOTS / len(weights))
    sizes = largest * weights / weights.max()
    axis.scatter(
        *places.T[::-1], s=sizes, color=color, edgecolor='white', linewidth=0.5, **style
    )
    if points.query is not None:
        y, x = (place - 0.5 for place in points.query)
        axis.scatter([x], [y], s=150, c='red', edgecolor='white', marker='*', **style)
    axis.set_xlabel(f'max {weights.max() / weights.mean():.3g} x mean', fontsize=10)


def _legend(query: tuple[int, int] | None) -> list[Line2D]:
    """Return what the marks mean."""
    marks = {
        'uniform grid': dict(marker='+', color='black'),
        'sampled point, area: attention': dict(marker='o', color='gray'),
    }
    if query is not None:
        marks['query {} {}'.format(*query)] = dict(marker='*', color='red')
    return [
        Line2D([], [], linestyle='', label=label, **style)
        for label, style in marks.items()
    ]


def main(argv: Sequence[str] | None = None):
    parser = make_model_parser(__doc__, 'sampling_points.png')
    parser.add_argument('image', help='image file; the test pipeline prepares it')
    add_query(parser, 'all queries')
    for name, most in (('layer', MAX_LAYERS), ('group', MAX_GROUPS)):
        which = 'evenly spaced' if name == 'layer' else 'the first'
        parser.add_argument(
            f'--{name}s',
            nargs='+',
            type=int,
            metavar=name.upper(),
            help=f'{name}s to draw, counted from 0, default: up to {most}, {which}',
        )
    args = parser.parse_args(argv)
    model = load_model(args).put(args.image)
    draw(model, args.query, args.layers, args.groups, args.out)
    print(f'sampling points: {args.out}')


if __name__ == '__main__':
    run_main(main)
