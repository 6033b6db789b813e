"""Draw which heads a model with soft masks made local, and which global.

    draw_mask_alphas.py CONFIG --checkpoint FILE

prints alpha of each masked head, and writes it as a heat map and, beside it, a csv
file. A soft mask multiplies the scores of patches that are no neighbors by alpha, so a
head is local near 0 and global near 1: see section 4.3 of "MaiT: Leverage Attention
Masks for More Efficient Image Transformers" (https://arxiv.org/abs/2207.03006). Heads
without a soft mask are left blank.
"""

from collections.abc import Sequence

from mmattn.analysis import mask_alphas, mask_layers
from mmattn.analysis.image_in_model import load_model, make_model_parser
from mmattn.analysis.layer_heads import report
from mmattn.cli.terminal import run_main


def main(argv: Sequence[str] | None = None):
    args = make_model_parser(__doc__, 'mask_alphas.png').parse_args(argv)
    model = load_model(args)
    alphas, layers = mask_alphas(model.backbone), [*mask_layers(model.backbone)]
    report(model, layers, alphas, 'alpha', args.out, 'Alpha of the soft masks')
    print(f'mask alphas: {args.out}, {args.out.with_suffix(".csv")}')


if __name__ == '__main__':
    run_main(main)
