"""Draw the attention kernels of pixels of an image: how they weigh the other pixels.

    draw_attention_kernels.py CONFIG IMAGE --checkpoint FILE --query 100 140

writes one panel for each layer and head, with the query in a red box, as in Figures 4
and 8 of "Lightweight Structure-Aware Attention for Visual Understanding"
(https://arxiv.org/abs/2211.16289). --compare CONFIG puts another model beside it.
Kernels of softmax attention are drawn from 0. Those with negative weights, such as
structure-aware attention's, are drawn around 0. Each panel has its own scale.

The config may be of any mm package, with any backbone whose attention can be read: see
mmattn/analysis/attention_maps.py.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from mmattn.analysis import AttentionKernels, attention_kernels
from mmattn.analysis.image_in_model import (
    ImageInModel,
    add_query,
    choose,
    load_models,
    make_parser,
    parse_args,
)
from mmattn.cli.terminal import run_main

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Rectangle

MAX_LAYERS = 6
MAX_HEADS = 4
PANEL_INCHES = 1.6
IMAGE_INCHES = 3.2
MARGIN_INCHES = 1.0
SMALL = 9


def draw(
    models: Sequence[ImageInModel],
    queries: Sequence[tuple[int, int]],
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    out: Path,
):
    """Draw one row for each query: the image, then the panels of each model."""
    blocks = [_chosen(model, queries, layers, heads) for model in models]
    num_heads = max(len(panels) for block in blocks for _, _, panels in block)
    height = max(IMAGE_INCHES, num_heads * PANEL_INCHES) + MARGIN_INCHES
    widths = [IMAGE_INCHES, *(len(block) * PANEL_INCHES for block in blocks)]
    figure = plt.figure(
        figsize=(sum(widths), height * len(queries)), layout='constrained'
    )
    rows = figure.subfigures(
        len(queries), len(widths), width_ratios=widths, squeeze=False
    )
    for i, (query, parts) in enumerate(zip(queries, rows, strict=True)):
        _draw_image(parts[0], models[0].picture, query, blocks[0][0][1], i)
        for part, model, block in zip(parts[1:], models, blocks, strict=True):
            part.suptitle(model.label, fontsize=12)
            _draw_block(part, block, num_heads, i)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)
    plt.close(figure)


def _chosen(model: ImageInModel, queries, layers, heads):
    """Return the index, the kernels and the heads to draw of each chosen layer."""
    places = [model.place(*query) for query in queries]
    found = attention_kernels(model.backbone, model.inputs, places)
    block = []
    for index in choose(
        layers, len(found), f'attention layers of {model.label}', MAX_LAYERS
    ):
        count = found[index].kernels.shape[1]
        what = f'heads of {found[index].layer} of {model.label}'
        first = range(min(count, MAX_HEADS))
        shown = choose(first if heads is None else heads, count, what, MAX_HEADS)
        block.append((index, found[index], shown))
    return block


def _draw_image(
    part: SubFigure, picture: np.ndarray, query, kernels: AttentionKernels, i: int
):
    """Draw the image, and the query's cell on the grid of these kernels."""
    axis = part.subplots()
    axis.imshow(picture)
    axis.set(xticks=[], yticks=[])
    axis.set_title('query ({}, {})'.format(*query), fontsize=10)
    _box(
        axis, kernels.cells[i], picture.shape[:2] / np.array(kernels.kernels.shape[2:])
    )


def _draw_block(part: SubFigure, block, num_heads: int, i: int):
    """Draw the kernels of query `i`: columns are layers, rows are heads."""
    signed = any((kernels.kernels < 0).any() for _, kernels, _ in block)
    scale = dict(cmap='PRGn', vmin=-1) if signed else dict(cmap='viridis', vmin=0)
    axes = part.subplots(num_heads, len(block), squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for column, (index, kernels, heads) in zip(axes.T, block, strict=True):
        name = kernels.layer.rpartition('.')[0] or kernels.layer  # the block's
        column[0].set_title(f'{index}: {name}', fontsize=SMALL)
        for axis, head in zip(column, heads, strict=False):
            kernel = kernels.kernels[i, head].numpy()
            most = max(abs(kernel).max(), np.finfo(kernel.dtype).tiny)
            drawn = axis.imshow(kernel / most, vmax=1, **scale)
            axis.set_frame_on(True)
            _box(axis, kernels.cells[i], (1, 1))
            if axis.get_subplotspec().is_first_col():
                axis.set_ylabel(f'head {head}', fontsize=SMALL)
    bar = part.colorbar(drawn, ax=axes, location='bottom', shrink=0.4, aspect=40)
    marks = {-1: '-max', 0: '0', 1: 'max'} if signed else {0: '0', 1: 'max'}
    bar.set_ticks([*marks], labels=[*marks.values()], fontsize=SMALL)


def _box(axis: Axes, cell: tuple[int, int], size: Sequence[float]):
    (row, column), (height, width) = cell, size
    corner = (column * width - 0.5, row * height - 0.5)  # pixels are around integers
    axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor='red'))


def main(argv: Sequence[str] | None = None):
    parser = make_parser(__doc__, 'attention_kernels.png')
    add_query(
        parser,
        'the middle; repeat the option for more rows of panels',
        action='append',
    )
    parser.add_argument(
        '--heads',
        nargs='+',
        type=int,
        metavar='HEAD',
        help=f'heads to draw, counted from 0, default: the first {MAX_HEADS}',
    )
    args = parse_args(parser, argv)
    models = load_models(args)
    height, width = models[0].place.image_size
    queries = args.query or [(height // 2, width // 2)]
    draw(models, queries, args.layers, args.heads, args.out)
    print(f'attention kernels: {args.out}')


if __name__ == '__main__':
    run_main(main)
