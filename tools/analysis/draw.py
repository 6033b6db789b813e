"""Draw what happens inside a model, for images of your own.

    python tools/analysis/draw.py KIND CONFIG IMAGE ... --checkpoint FILE

KIND is one of

    kernels      how a pixel weighs the others, in each layer and head
    points       where the deformable attention of DAT and DAT++ samples its keys
    norms        how large the features are, pixel by pixel, after each block
    boxes        which pixels the boxes and classes of a Deformable DETR depend on
    locality     how much of its attention each head spends on neighbors
    alphas       which heads a model with soft masks made local (takes no image)
    similarity   how alike the attention maps of the layers are
    diversity    how much the heads of a layer differ

`draw.py KIND --help` lists its options. The config may be of any mm package. Kinds that
average over images also write a csv file beside the picture. docs/analysis.md says what
they show; the functions of `mmattn.analysis` return the same numbers.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from mmattn.analysis import (
    attention_kernels,
    feature_norms,
    head_diversity,
    layer_similarity,
    locality_by_layer,
    mask_alphas,
    mask_layers,
    pad_heads,
    sampling_points,
    similarity_among,
)
from mmattn.analysis.attention_maps import multiples_of_mean, top_of
from mmattn.analysis.box_gradients import ITEMS, box_gradients
from mmattn.analysis.image_in_model import (
    add_query,
    choose,
    load_model,
    load_models,
    make_images_parser,
    make_model_parser,
    make_parser,
    parse_args,
)
from mmattn.analysis.layer_heads import report
from mmattn.cli.terminal import positive, print_table, run_main
from mmattn.errors import UserError
from mmattn.images.draw import class_colors, styled

LAYERS, HEADS = 6, 4  # drawn at most
PANEL = 2.2  # inches
LARGEST_DOT, ALL_DOTS = 150, 30_000  # square points, of one and of all
LAST = 8  # layers in the mean of similarities
LEAST_SPAN = 0.1  # of the largest norm, which the colors of a panel span


def grid(rows: int, columns: int, title: str, panel: float = PANEL):
    """Return a figure and its axes (rows, columns) without ticks."""
    size = columns * panel, rows * (panel + 0.4) + 0.8
    figure = Figure(size)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.suptitle(title, wrap=True)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    return figure, axes


def save(figure, out: Path):
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    print(f'wrote {out}')


def of_all(chosen: Sequence, count: int, what: str) -> str:
    """Return what a title says of things that are left out, empty if none are."""
    return '' if len(chosen) >= count else f', {len(chosen)} of {count} {what}'


def say_absent(axis, what: str):
    """Write into an empty panel why it is empty."""
    axis.text(0.5, 0.5, f'no {what}', ha='center', transform=axis.transAxes)


def write_csv(out: Path, head: Sequence[str], rows: Iterable[Sequence]):
    """Write rows beside a picture, numbers with six digits."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_suffix('.csv').open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(head)
        for row in rows:
            writer.writerow([f'{x:.6g}' if type(x) is float else x for x in row])


def box(axis, cell: Sequence[int], size: Sequence[float]):
    (row, column), (height, width) = cell, size
    corner = column * width - 0.5, row * height - 0.5  # pixels are around integers
    for color, line in (('black', 3), ('white', 1)):
        look = dict(fill=False, edgecolor=color, linewidth=line)
        axis.add_patch(Rectangle(corner, width, height, **look))


def kernels(argv: Sequence[str]):
    """Draw attention kernels: a row for each head, the columns are layers.

    Weights are multiples of the head's mean, with one scale for each layer: from 0, or
    around 0 if some are negative.
    """
    parser = make_parser(kernels.__doc__, 'attention_kernels.png')
    add_query(parser, 'the middle')
    parser.add_argument('--heads', nargs='+', type=int, metavar='HEAD')
    args = parse_args(parser, argv)
    models = load_models(args)
    height, width = models[0].place.image_size
    query = args.query or (height // 2, width // 2)
    panels, labels = [], []
    for model in models:
        found = attention_kernels(model.backbone, model.inputs, [model.place(*query)])
        what = f'attention layers of {model.label}'
        chosen = choose(args.layers, len(found), what, LAYERS)
        panels += [found[i] for i in chosen]
        labels.append(model.label + of_all(chosen, len(found), 'layers'))
    counts = [each.kernels.shape[1] for each in panels]
    heads = args.heads or range(min(max(counts), HEADS))
    title = ' | '.join(labels) + of_all(heads, max(counts), 'heads')
    figure, axes = grid(len(heads), 1 + len(panels), title)
    axes[0, 0].imshow(models[0].picture)
    axes[0, 0].set_title(f'query {query[0]} {query[1]}')
    cells = np.array(panels[0].kernels.shape[2:])
    box(axes[0, 0], panels[0].cells[0], models[0].picture.shape[:2] / cells)
    for column, found, count in zip(axes.T[1:], panels, counts, strict=True):
        multiples = multiples_of_mean(found.kernels[0])
        top, signed = top_of(multiples), bool((multiples < 0).any())
        scale = dict(cmap='PRGn', vmin=-top) if signed else dict(cmap='viridis', vmin=0)
        column[0].set_title(found.layer.rpartition('.')[0] or found.layer)
        for axis, head in zip(column, heads, strict=True):
            if args.heads is None and head >= count:
                say_absent(axis, f'head {head}')
                continue
            (head,) = choose([head], count, 'heads', 1)
            drawn = axis.imshow(multiples[head], vmax=top, **scale)
            axis.set(ylabel=f'head {head}')
            axis.set(xlabel=f'max {np.abs(multiples[head]).max():.3g} x mean')
            box(axis, found.cells[0], (1, 1))
        figure.colorbar(drawn, ax=column.tolist(), location='bottom', label='x mean')
    save(figure, args.out)


def points(argv: Sequence[str]):
    """Draw the points that each offset group samples, over the image.

    Lines lead from the uniform grid to the points. The area of a dot is the attention
    that it receives from all queries, or from the pixel --query (a white star).
    """
    parser = make_model_parser(points.__doc__, 'sampling_points.png')
    parser.add_argument('image')
    add_query(parser, 'all queries')
    parser.add_argument('--layers', nargs='+', type=int, metavar='LAYER')
    args = parser.parse_args(argv)
    model = load_model(args).put(args.image)
    place = None if args.query is None else model.place(*args.query)
    found = sampling_points(model.backbone, model.inputs, place)
    what = f'deformable layers of {model.label}'
    chosen = choose(args.layers, len(found), what, LAYERS)
    title = model.label + of_all(chosen, len(found), 'layers')
    found = [found[i] for i in chosen]
    groups = max(len(each.points) for each in found)
    columns = min(HEADS, groups)
    title += of_all(range(columns), groups, 'groups')
    figure, axes = grid(len(found), columns, title, 3.2)
    colors = np.array(class_colors(columns)) / 255
    for line, each in zip(axes, found, strict=True):
        for group, axis in enumerate(line):
            if group >= len(each.points):
                say_absent(axis, f'group {group}')
                continue
            axis.imshow(model.picture.mean(2), cmap='gray', vmin=0, vmax=400)
            weights = each.weights[group].numpy()
            start, end = (
                x.numpy() - 0.5 for x in (each.references, each.points[group])
            )
            lines = np.stack([start, end], axis=1)[..., ::-1]
            color = [colors[group]]
            axis.add_collection(LineCollection(lines, colors=color), autolim=False)
            axis.scatter(*start.T[::-1], s=12, c='white', marker='+', zorder=3)
            sizes = min(LARGEST_DOT, ALL_DOTS / len(weights)) * weights / weights.max()
            axis.scatter(*end.T[::-1], s=sizes, c=color, clip_on=False, zorder=3)
            if each.query is not None:
                y, x = (side - 0.5 for side in each.query)
                look = dict(c='white', edgecolors='black', marker='*', zorder=4)
                axis.scatter([x], [y], s=200, **look)
            axis.set_title(f'{each.layer}, group {group}')
            share = weights.max() / weights.mean()
            axis.set_xlabel(f'max {share:.3g} x mean')
    save(figure, args.out)


def norms(argv: Sequence[str]):
    """Draw the L2 norms of the channels after each block, each panel by its scale.

    Colors span at least a tenth of the largest norm, so that nearly equal norms look
    alike.
    """
    args = parse_args(make_parser(norms.__doc__, 'feature_norms.png'), argv)
    rows = []
    for model in load_models(args):
        found = [*feature_norms(model.backbone, model.inputs).items()]
        chosen = choose(args.layers, len(found), f'layers of {model.label}', LAYERS)
        label = model.label + of_all(chosen, len(found), 'layers')
        rows.append((model, [found[i] for i in chosen], label))
    columns = 1 + max(len(blocks) for _, blocks, _ in rows)
    title = ' | '.join(label for *_, label in rows)
    figure, axes = grid(len(rows), columns, title)
    for line, (model, blocks, _) in zip(axes, rows, strict=True):
        line[0].imshow(model.picture)
        for axis in line[1 + len(blocks) :]:
            say_absent(axis, 'other block')
        for axis, (name, norm) in zip(line[1:], blocks, strict=False):
            low, high = norm.min().item(), norm.max().item()
            axis.imshow(norm.numpy(), vmin=min(low, (1 - LEAST_SPAN) * high), vmax=high)
            axis.set_title(name)
            axis.set_xlabel(f'{low:.3g} to {high:.3g}')
    save(figure, args.out)


def boxes(argv: Sequence[str]):
    """Draw the gradients of the best boxes of a Deformable DETR by the pixels."""
    parser = make_model_parser(boxes.__doc__, 'box_gradients.png')
    parser.add_argument('image')
    parser.add_argument('--count', type=positive, default=3, help='detections')
    args = parser.parse_args(argv)
    model = load_model(args)
    image = model.put(args.image)
    found = box_gradients(model.model, image.inputs, image.samples, count=args.count)
    title = f'{image.label}, square roots of the norms of gradients'
    figure, axes = grid(len(found), 1 + len(ITEMS), title)
    for line, each in zip(axes, found, strict=True):
        left, top, right, bottom = each.box
        line[0].imshow(image.picture)
        line[0].set_xlabel(f'class {each.label}, score {each.score:.2f}')
        for axis, norm in zip(line[1:], each.norms, strict=True):
            axis.imshow(norm.sqrt().numpy(), cmap='magma')  # few pixels are large
        for axis in line:
            sides = right - left, bottom - top
            axis.add_patch(Rectangle((left, top), *sides, fill=False, ec='white'))
    for axis, title in zip(axes[0], ('image', *ITEMS), strict=True):
        axis.set_title(title)
    save(figure, args.out)


def locality(argv: Sequence[str]):
    """Draw the attention locality score of MaiT's paper, section 4.2, of each head."""
    parser = make_images_parser(locality.__doc__, 'attention_locality.png')
    parser.add_argument(
        '--kernel-size', type=positive, help="default: the masks', or 3"
    )
    args = parser.parse_args(argv)
    model = load_model(args)
    images = model.inputs_of(args)
    found = locality_by_layer(model.backbone, images, args.kernel_size)
    layers, scores = zip(*found, strict=True)
    title = f'Attention locality score, images: {len(images)}'
    report(model, layers, pad_heads(scores), 'locality', args.out, title)


def alphas(argv: Sequence[str]):
    """Draw alpha of each softly masked head: near 0 it is local, near 1 global."""
    args = make_model_parser(alphas.__doc__, 'mask_alphas.png').parse_args(argv)
    model = load_model(args)
    found, layers = mask_alphas(model.backbone), [*mask_layers(model.backbone)]
    report(model, layers, found, 'alpha', args.out, 'Alpha of the soft masks')


def similarity(argv: Sequence[str]):
    """Draw the cosines between the attention maps of each two layers, by head."""
    parser = make_images_parser(similarity.__doc__, 'layer_similarity.png')
    parser.add_argument('--last', type=int, help=f'layers in the mean, default: {LAST}')
    args = parser.parse_args(argv)
    model = load_model(args)
    found = layer_similarity(model.backbone, model.inputs_of(args))
    L, _, M = found.shape
    last = min(LAST, L) if args.last is None else args.last
    if not 2 <= last <= L:
        raise UserError(f'--last must be between 2 and {L} layers, got {last}')
    means = similarity_among(found, range(L - last, L))
    table = Table('head', f'mean of the last {last} layers', title=model.label)
    for head, mean in enumerate(means):
        table.add_row(str(head), f'{mean:.3f}')
    print_table(table)
    figure, axes = grid(1, M, model.label)
    for head, axis in enumerate(axes[0]):
        drawn = axis.imshow(found[..., head].numpy(), vmin=0, vmax=1, origin='lower')
        axis.set_title(f'head {head}: {means[head]:.2f}')
        axis.set(xlabel='layer', ylabel='layer')
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(drawn, ax=axes[0].tolist(), label='cosine', shrink=0.8)
    pairs = [(h, i, j) for h in range(M) for i in range(L) for j in range(i + 1)]
    rows = ((h, i, j, found[i, j, h].item()) for h, i, j in pairs)
    write_csv(args.out, ['head', 'layer', 'other', 'similarity'], rows)
    save(figure, args.out)


def diversity(argv: Sequence[str]):
    """Draw the variance between heads and their similarity, layer by layer."""
    parser = make_images_parser(diversity.__doc__, 'head_diversity.png')
    args = parser.parse_args(argv)
    model = load_model(args)
    layers = [asdict(x) for x in head_diversity(model.backbone, model.inputs_of(args))]
    table = Table(*layers[0], title=model.label)
    for layer in layers:
        cells = (f'{x:.3g}' if type(x) is float else str(x) for x in layer.values())
        table.add_row(*cells)
    print_table(table)
    figure = Figure((9, 4))
    axes = figure.subplots(1, 2)
    for axis, key in zip(axes, ('head_variance', 'similarity'), strict=True):
        values = np.array([layer[key] for layer in layers])
        axis.plot(values, 'o-', markersize=3)
        axis.set(xlabel='layer', ylabel=key.replace('_', ' '))
        if np.isnan(values).all():
            say_absent(axis, 'pair of heads')
        else:  # from 0, as differences of a millionth are none
            axis.set_ylim(min(0, 1.1 * np.nanmin(values)), 1.1 * np.nanmax(values))
    figure.suptitle(model.label)
    write_csv(args.out, list(layers[0]), (layer.values() for layer in layers))
    save(figure, args.out)


KINDS = dict(
    kernels=kernels,
    points=points,
    norms=norms,
    boxes=boxes,
    locality=locality,
    alphas=alphas,
    similarity=similarity,
    diversity=diversity,
)


def main(argv: Sequence[str] | None = None):
    kind, *rest = (sys.argv[1:] if argv is None else argv) or ['--help']
    if kind not in KINDS:
        print(__doc__)
        raise SystemExit(0 if kind in ('-h', '--help') else 2)
    styled(KINDS[kind])(rest)


if __name__ == '__main__':
    run_main(main)
