"""Draw where deformable attention samples its keys, over the image.

    draw_sampling_points.py CONFIG IMAGE --checkpoint FILE

writes one panel for each layer (a row) and offset group, as in the figures of "Vision
Transformer with Deformable Attention" (https://arxiv.org/abs/2201.00520). Small crosses
are the uniform grid that the offsets start from, and dots are the sampled points. Their
color is the attention that they receive from all queries, or from the pixel --query,
which has a red star. Each panel has its own scale. The largest attention is written
below it, as a multiple of the mean.

The config may be of any mm package. Its backbone must use the `DeformableAttention` of
DAT and DAT++: see mmattn/analysis/sampling_points.py.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from image_in_model import (
    ImageInModel,
    add_query,
    choose,
    load_model,
    make_model_parser,
)

from mmattn.analysis import SamplingPoints, sampling_points

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

MAX_LAYERS = 4
MAX_GROUPS = 4
PANEL_INCHES = 2.5
TITLE_INCHES = 0.5
MARGIN_INCHES = 1.0
SMALL = 7


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
            drawn = _draw_panel(axis, model, points, group)
            name = points.layer.removesuffix('.attn')  # the block's
            axis.set_title(f'{index}: {name}, group {group}', fontsize=SMALL)
    bar = figure.colorbar(drawn, ax=axes, location='bottom', shrink=0.4, aspect=40)
    bar.set_ticks([0, 1], labels=['0', 'max'], fontsize=SMALL)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def _draw_panel(
    axis: Axes, model: ImageInModel, points: SamplingPoints, group: int
) -> PathCollection:
    """Draw one group; points outside the image, which sample zeros, are not clipped."""
    axis.imshow(model.picture, alpha=0.6)
    weights = points.weights[group].numpy()
    size = min(40, 1500 / len(weights))  # the more points, the smaller
    grid, places = (x.numpy() - 0.5 for x in (points.references, points.points[group]))
    style = dict(clip_on=False, zorder=2)  # pixels are around integers
    axis.scatter(
        *grid.T[::-1], s=size / 2, c='white', marker='+', linewidths=0.5, **style
    )
    drawn = axis.scatter(
        *places.T[::-1], s=size, c=weights / weights.max(), vmin=0, vmax=1, **style
    )
    if points.query is not None:
        y, x = (place - 0.5 for place in points.query)
        axis.scatter([x], [y], s=60, c='red', marker='*', **style)
    axis.set_xlabel(f'max {weights.max() / weights.mean():.3g} x mean', fontsize=SMALL)
    return drawn


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
    main()
