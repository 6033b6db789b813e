"""Predict objects, label maps or classes, and draw them.

Writes drawn images or videos, and `predictions.json`: annotations of COCO for detection
and segmentation, the best classes for classification. Label maps are also written as
PNG files.
"""

import argparse
import sys
from pathlib import Path

from ..results import SCORE
from .terminal import (
    add_cfg_options,
    add_overlap,
    add_trust,
    command_parser,
    positive,
    share,
)

MODEL = (
    'work dir of a run, config, name of a config, checkpoint in a work dir, exported '
    '.onnx, .pt2 or .xml file, or name of weights (mmattn://hela-ivit-n)'
)
CONFIG = "config of a work dir or checkpoint in place of the run's; it runs as code"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('model', metavar='MODEL', help=MODEL)
    parser.add_argument(
        'images',
        metavar='IMAGE',
        nargs='+',
        help='images, videos, folders, patterns or addresses',
    )
    parser.add_argument(
        '--weights',
        help="path, name or address of weights; of a work dir also 'best' or 'last'",
    )
    parser.add_argument('--config', help=CONFIG)
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('predictions'),
        help='folder of the results (default: %(default)s)',
    )
    parser.add_argument(
        '--score',
        type=share,
        default=SCORE,
        help='lowest score of an object (default: %(default)s)',
    )
    parser.add_argument('--device', help="such as 'cpu' or 'cuda:0'")
    parser.add_argument(
        '--batch-size', type=positive, default=1, help='images at a time (default: 1)'
    )
    parser.add_argument(
        '--scale',
        type=float,
        help="factor of an image's sides in place of the config's resize",
    )
    parser.add_argument(
        '--tile', type=positive, help='cut images into tiles of this side'
    )
    add_overlap(parser)
    parser.add_argument(
        '--nms-iou',
        type=share,
        help='of two objects of a class that overlap by more than this IoU, leave out '
        "the one with the lower score; default: the model's own suppression alone",
    )
    parser.add_argument(
        '--no-draw', dest='draw', action='store_false', help='draw nothing'
    )
    parser.add_argument(
        '--skip-broken', action='store_true', help='warn of files that cannot be read'
    )
    parser.add_argument(
        '--max-megapixels',
        type=float,
        default=89,
        help='pixels of an image that are accepted, in millions (default: 89)',
    )
    add_trust(parser)
    add_cfg_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    from ..apis.predictor import Predictor
    from ..apis.writing import write_predictions

    predictor = Predictor(
        args.model,
        args.weights,
        args.device,
        cfg_options=args.cfg_options,
        config=args.config,
        trust_checkpoint=args.trust_checkpoint,
    )
    summary = write_predictions(
        predictor,
        args.images,
        args.out,
        score=args.score,
        draw=args.draw,
        batch_size=args.batch_size,
        scale=args.scale,
        tile=args.tile,
        overlap=args.overlap,
        nms_iou=args.nms_iou,
        skip_broken=args.skip_broken,
        max_megapixels=args.max_megapixels,
        progress=sys.stderr.isatty(),
    )
    print(summary)
