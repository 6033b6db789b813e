"""Draw how large the features of an image are, pixel by pixel, after each block.

    draw_feature_norms.py CONFIG IMAGE --checkpoint FILE

writes one panel for each block, with the L2 norms of the channels, as in Figure 9 of
"Lightweight Structure-Aware Attention for Visual Understanding"
(https://arxiv.org/abs/2211.16289). --compare CONFIG puts another model below it. Each
panel has its own scale, which is written under it.

The config may be of any mm package, with any backbone whose blocks return maps or
tokens: see mmattn/analysis/feature_norms.py.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from image_in_model import ImageInModel, choose, load_models, make_parser, parse_args

from mmattn.analysis import feature_norms

matplotlib.use('Agg')
from matplotlib import pyplot as plt

MAX_LAYERS = 8
PANEL_INCHES = 1.5
TITLE_INCHES = 0.7


def draw(models: Sequence[ImageInModel], layers: Sequence[int] | None, out: Path):
    """Draw one row for each model: the image, then its blocks."""
    rows = []
    for model in models:
        norms = [*feature_norms(model.backbone, model.inputs).items()]
        chosen = choose(layers, len(norms), f'layers of {model.label}', MAX_LAYERS)
        rows.append([(index, *norms[index]) for index in chosen])
    columns = 1 + max(map(len, rows))
    size = (columns * PANEL_INCHES, len(rows) * (PANEL_INCHES + TITLE_INCHES))
    figure = plt.figure(figsize=size, layout='constrained')
    parts = figure.subfigures(len(rows), squeeze=False)[:, 0]
    for part, model, row in zip(parts, models, rows, strict=True):
        part.suptitle(model.label, fontsize=10)
        axes = part.subplots(1, columns)
        for axis in axes:
            axis.set(xticks=[], yticks=[])
        for axis in axes[1 + len(row) :]:
            axis.set_axis_off()
        axes[0].imshow(model.picture)
        axes[0].set_title('image', fontsize=7)
        for axis, (index, name, norm) in zip(axes[1:], row, strict=False):
            axis.imshow(norm.numpy())
            axis.set_title(f'{index}: {name}', fontsize=7)
            axis.set_xlabel(f'{norm.min():.3g} to {norm.max():.3g}', fontsize=7)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main(argv: Sequence[str] | None = None):
    args = parse_args(make_parser(__doc__, 'feature_norms.png'), argv)
    draw(load_models(args), args.layers, args.out)
    print(f'feature norms: {args.out}')


if __name__ == '__main__':
    main()
