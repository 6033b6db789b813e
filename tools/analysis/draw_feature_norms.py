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

from mmattn.analysis import feature_norms
from mmattn.analysis.image_in_model import (
    ImageInModel,
    choose,
    load_models,
    make_parser,
    parse_args,
)
from mmattn.cli.terminal import run_main

matplotlib.use('Agg')
from matplotlib import pyplot as plt

MAX_LAYERS = 8
MAX_COLUMNS = 5
PANEL_INCHES = 2.2
TITLE_INCHES = 0.5


def draw(models: Sequence[ImageInModel], layers: Sequence[int] | None, out: Path):
    """Draw the image and the blocks of each model, in rows of five panels."""
    found = []
    for model in models:
        norms = [*feature_norms(model.backbone, model.inputs).items()]
        chosen = choose(layers, len(norms), f'layers of {model.label}', MAX_LAYERS)
        found.append([(index, *norms[index]) for index in chosen])
    most = 1 + max(map(len, found))
    rows = -(-most // MAX_COLUMNS)
    columns = -(-most // rows)
    height = rows * (PANEL_INCHES + TITLE_INCHES) + TITLE_INCHES
    size = (columns * PANEL_INCHES, len(found) * height)
    figure = plt.figure(figsize=size, layout='constrained')
    parts = figure.subfigures(len(found), squeeze=False)[:, 0]
    for part, model, blocks in zip(parts, models, found, strict=True):
        part.suptitle(model.label, fontsize=12)
        axes = part.subplots(rows, columns, squeeze=False).ravel()
        for axis in axes:
            axis.set(xticks=[], yticks=[])
        for axis in axes[1 + len(blocks) :]:
            axis.set_axis_off()
        axes[0].imshow(model.picture)
        axes[0].set_title('image', fontsize=10)
        for axis, (index, name, norm) in zip(axes[1:], blocks, strict=False):
            axis.imshow(norm.numpy())
            axis.set_title(f'{index}: {name}', fontsize=10)
            axis.set_xlabel(f'{norm.min():.3g} to {norm.max():.3g}', fontsize=10)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)
    plt.close(figure)


def main(argv: Sequence[str] | None = None):
    args = parse_args(make_parser(__doc__, 'feature_norms.png'), argv)
    draw(load_models(args), args.layers, args.out)
    print(f'feature norms: {args.out}')


if __name__ == '__main__':
    run_main(main)
