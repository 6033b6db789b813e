"""Draw how much of its attention each head spends on neighbors, layer by layer.

    draw_attention_locality.py CONFIG IMAGE [IMAGE ...] --checkpoint FILE

prints the attention locality score of "MaiT: Leverage Attention Masks for More
Efficient Image Transformers" (https://arxiv.org/abs/2207.03006), section 4.2, averaged
over the images. It also writes a heat map and, beside it, a csv file. Masked heads have
a red frame. A head that attends only to a patch's neighbors scores 1. Its neighbors are
the 3 x 3 patches around it, or as many as the model's masks cover. A plain average over
14 x 14 patches and a class token scores 0.041.

The config may be of any mm package, with any backbone whose softmax attention can be
read, masked or not: see mmattn/analysis/attention_maps.py.
"""

from collections.abc import Sequence

from mmattn.analysis import locality_by_layer, pad_heads
from mmattn.analysis.image_in_model import load_model, make_images_parser
from mmattn.analysis.layer_heads import report
from mmattn.cli.terminal import positive, run_main


def main(argv: Sequence[str] | None = None):
    parser = make_images_parser(__doc__, 'attention_locality.png')
    parser.add_argument(
        '--kernel-size',
        type=positive,
        help="width of the neighborhood, default: the width of the model's masks, or 3",
    )
    args = parser.parse_args(argv)
    model = load_model(args)
    images = model.inputs_of(args)
    layers, scores = zip(
        *locality_by_layer(model.backbone, images, args.kernel_size), strict=True
    )
    count = f'{len(images)} image' + 's' * (len(images) > 1)
    title = f'Attention locality score, {count}'
    report(model, layers, pad_heads(scores), 'locality', args.out, title)
    print(f'attention locality: {args.out}, {args.out.with_suffix(".csv")}')


if __name__ == '__main__':
    run_main(main)
