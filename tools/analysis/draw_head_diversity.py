"""Draw how much the attention heads of a model differ, by layer and number of heads.

    draw_head_diversity.py CONFIG IMAGE [IMAGE ...] --checkpoint FILE --out a.png
    draw_head_diversity.py CONFIG IMAGE [IMAGE ...] --checkpoint FILE --out b.png \
        --with a.csv

writes a figure and a csv file with each layer's variance between heads, variance of the
entries of a head's map, and cosine similarity between heads, averaged over images.
Figures 6(b) and 7 of "Interactive Multi-Head Self-Attention with Linear Complexity"
(https://arxiv.org/abs/2402.17507) show variance against the number of heads, and
similarity against depth. `--with` draws csv files of other models, such as a sweep over
the number of heads, in the same figure.

The config may be of any mm package. Landmark attention is measured by the product of
its two matrices: see mmattn/analysis/head_diversity.py, which defines the statistics.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import matplotlib
from rich.table import Table

from mmattn.analysis import HeadDiversity, head_diversity
from mmattn.analysis.image_in_model import load_model, make_images_parser
from mmattn.cli.terminal import print_table, run_main
from mmattn.errors import UserError

matplotlib.use('Agg')
from matplotlib import pyplot as plt

COLUMNS = ['model', *(field.name for field in fields(HeadDiversity))]
SIZE_INCHES = (9, 4)

Models = dict[str, list[HeadDiversity]]


def write(model: str, layers: Sequence[HeadDiversity], path: Path):
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
        writer.writeheader()
        for layer in layers:
            row = {
                key: f'{value:.6g}' if isinstance(value, float) else value
                for key, value in asdict(layer).items()
            }
            writer.writerow(dict(row, model=model))


def read(path: Path) -> Models:
    """Read the layers of the models in a csv file that this tool wrote.

    Raises:
        ValueError: there is no such file, or its columns are others.
    """
    if not path.is_file():
        raise UserError(f'--with must be a csv file of this tool, got {path}')
    models = defaultdict(list)
    with path.open(newline='') as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != COLUMNS:
            raise UserError(
                f'{path} must have the columns {COLUMNS}, got {rows.fieldnames}'
            )
        for row in rows:
            model = row.pop('model')
            values = {
                field.name: field.type(row[field.name])
                for field in fields(HeadDiversity)
            }
            models[model].append(HeadDiversity(**values))
    return models


def draw(models: Models, out: Path):
    """Draw variance against heads, averaged over layers, and similarity by layer."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=SIZE_INCHES, layout='constrained'
    )
    for model, layers in models.items():
        by_heads = defaultdict(list)
        for layer in layers:
            by_heads[layer.num_heads].append(layer.head_variance)
        means = [sum(values) / len(values) for values in by_heads.values()]
        left.plot(list(by_heads), means, 'o', label=model)
        right.plot([layer.similarity for layer in layers], 'o-', markersize=3)
    left.set(xlabel='heads', ylabel='variance between heads, mean over layers')
    left.set_xscale('log', base=2)
    left.ticklabel_format(axis='y', style='sci', scilimits=(0, 0))
    right.set(xlabel='layer', ylabel='cosine similarity of heads')
    right.locator_params(axis='x', integer=True)
    figure.legend(loc='outside lower center', fontsize=7)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main(argv: Sequence[str] | None = None):
    parser = make_images_parser(__doc__, 'head_diversity.png')
    parser.add_argument('--label', help="the model's name, default: config and weights")
    parser.add_argument(
        '--with',
        nargs='+',
        type=Path,
        default=[],
        dest='others',
        metavar='CSV',
        help='csv files of this tool, to draw their models too',
    )
    args = parser.parse_args(argv)
    models = {}
    for path in args.others:
        models |= read(path)
    model = load_model(args)
    label = args.label or model.label
    if label in models:
        raise UserError(f'--with has a model {label!r} already: pass another --label')
    images = model.inputs_of(args)
    layers = head_diversity(model.backbone, images)
    models[label] = layers
    table = Table('layer', 'heads', 'variance between', 'in a map', 'similarity')
    for layer in layers:
        table.add_row(
            layer.layer,
            str(layer.num_heads),
            f'{layer.head_variance:.3g}',
            f'{layer.map_variance:.3g}',
            f'{layer.similarity:.3f}',
        )
    print_table(table)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write(label, layers, args.out.with_suffix('.csv'))
    draw(models, args.out)
    print(f'head diversity: {args.out}, {args.out.with_suffix(".csv")}')


if __name__ == '__main__':
    run_main(main)
