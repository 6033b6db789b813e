"""Draw how alike the attention maps of a model's layers are, head by head.

    draw_layer_similarity.py CONFIG IMAGE [IMAGE ...] --checkpoint FILE

writes for each head a heat map of the cosines between the maps of each two layers,
averaged over tokens and images, and beside it a csv file. Figures 4 to 6 of "MaiT:
Leverage Attention Masks for More Efficient Image Transformers"
(https://arxiv.org/abs/2207.03006) show such maps. The tool prints the mean over pairs
of the last 8 layers. The paper reports 0.75 for a DeiT-T of 36 layers, and 0.65 where
masks differ between layers.

The config may be of any mm package. All layers of its backbone must attend to the same
tokens with the same number of heads: see mmattn/analysis/attention_maps.py.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from rich.table import Table
from torch import Tensor

from mmattn.analysis import layer_similarity, similarity_among
from mmattn.analysis.image_in_model import load_model, make_images_parser
from mmattn.cli.terminal import print_table, run_main
from mmattn.errors import UserError

matplotlib.use('Agg')
from matplotlib import pyplot as plt

LAST = 8
MAX_COLUMNS = 4
PANEL_INCHES = 2.6
TITLE_INCHES = 0.6


def draw(similarity: Tensor, titles: Sequence[str], label: str, out: Path):
    """Draw one panel for each head of (L, L, M), layer 0 in the lower left corner."""
    columns = min(len(titles), MAX_COLUMNS)
    rows = -(-len(titles) // columns)
    size = (columns * PANEL_INCHES + 1, rows * PANEL_INCHES + TITLE_INCHES)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, layout='constrained', squeeze=False
    )
    figure.suptitle(label, fontsize=9)
    for axis in axes.flat[len(titles) :]:
        axis.set_axis_off()
    for axis, panel, title in zip(
        axes.flat, similarity.unbind(-1), titles, strict=False
    ):
        drawn = axis.imshow(panel.numpy(), vmin=0, vmax=1, origin='lower')
        axis.set_title(title, fontsize=8)
        axis.set(xlabel='layer', ylabel='layer')
        axis.locator_params(integer=True)
        axis.label_outer()
    figure.colorbar(drawn, ax=axes, label='cosine similarity')
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def write(similarity: Tensor, path: Path):
    """Write each pair of layers once, and each layer with itself."""
    L, _, M = similarity.shape
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(['head', 'layer', 'other', 'similarity'])
        for head in range(M):
            for i in range(L):
                for j in range(i + 1):
                    writer.writerow([head, i, j, f'{similarity[i, j, head]:.6g}'])


def main(argv: Sequence[str] | None = None):
    parser = make_images_parser(__doc__, 'layer_similarity.png')
    parser.add_argument(
        '--last',
        type=int,
        help=f'number of last layers in the mean, default: up to {LAST}',
    )
    args = parser.parse_args(argv)
    model = load_model(args)
    images = model.inputs_of(args)
    similarity = layer_similarity(model.backbone, images)
    L, _, M = similarity.shape
    last = min(LAST, L) if args.last is None else args.last
    if not 2 <= last <= L:
        raise UserError(f'--last must be between 2 and {L} layers, got {last}')
    means = similarity_among(similarity, range(L - last, L))
    table = Table('head', f'mean of the last {last} layers', title=model.label)
    for head, mean in enumerate(means):
        table.add_row(str(head), f'{mean:.3f}')
    table.add_row('all', f'{means.mean():.3f}')
    print_table(table)
    titles = [f'head {head} (last {last}: {means[head]:.2f})' for head in range(M)]
    draw(similarity, titles, model.label, args.out)
    write(similarity, args.out.with_suffix('.csv'))
    print(f'layer similarity: {args.out}, {args.out.with_suffix(".csv")}')


if __name__ == '__main__':
    run_main(main)
