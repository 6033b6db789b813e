"""Draw which pixels the boxes and classes of a DETR depend on.

    draw_box_gradients.py CONFIG IMAGE --checkpoint FILE

writes a row of panels for each of the detections with the highest scores: the image
with the box, then the norms of the gradients of the box's middle (x and y), width and
height, and of the class's probability. Figure 5 of "Deformable DETR"
(https://arxiv.org/abs/2010.04159) shows such panels. Each has its own scale.

The config is of a Deformable DETR, of mmattn or of mmdet.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from mmattn.analysis.box_gradients import ITEMS, BoxGradients, box_gradients
from mmattn.analysis.image_in_model import ImageInModel, load_model, make_model_parser
from mmattn.cli.terminal import positive, run_main

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

PANEL_INCHES = 1.8


def draw(image: ImageInModel, found: Sequence[BoxGradients], out: Path):
    columns = 1 + len(ITEMS)
    size = (columns * PANEL_INCHES, len(found) * PANEL_INCHES + 0.5)
    figure, axes = plt.subplots(
        len(found), columns, figsize=size, layout='constrained', squeeze=False
    )
    figure.suptitle(image.label, fontsize=9)
    for row, each in zip(axes, found, strict=True):
        left, top, right, bottom = each.box
        for axis in row:
            axis.set(xticks=[], yticks=[])
        row[0].imshow(image.picture)
        row[0].set_xlabel(f'class {each.label}, score {each.score:.2f}', fontsize=7)
        for axis, norm in zip(row[1:], each.norms, strict=True):
            # Few pixels have by far the largest gradients.
            axis.imshow(norm.sqrt().numpy(), cmap='magma')
        for axis in row:
            corner, sides = (left, top), (right - left, bottom - top)
            axis.add_patch(Rectangle(corner, *sides, fill=False, ec='#33dd55', lw=0.8))
    for axis, title in zip(axes[0], ('image', *ITEMS), strict=True):
        axis.set_title(title, fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None):
    parser = make_model_parser(__doc__, 'box_gradients.png')
    parser.add_argument('image', help='image file; the test pipeline prepares it')
    parser.add_argument(
        '--count', type=positive, default=3, help='number of detections (default: 3)'
    )
    args = parser.parse_args(argv)
    model = load_model(args)
    image = model.put(args.image)
    found = box_gradients(model.model, image.inputs, image.samples, count=args.count)
    draw(image, found, args.out)
    print(f'box gradients: {args.out}')


if __name__ == '__main__':
    run_main(main)
