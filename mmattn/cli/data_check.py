"""Check the data sets and channels of a config as training does, and print a table.

    mmattn data check configs/demo/mask_rcnn_ivit_n_hela.py
    mmattn data check configs/demo/upernet_ivit_n_landcover.py --decode

Reads the annotations and the ends and sizes of all files of every split, in seconds;
with --decode it loads every image and annotation as the config does. Exits with 1 where
something is wrong, after the first error of the model or of each split.
"""

import argparse

from .terminal import add_config, command_parser


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    add_config(parser)
    parser.add_argument(
        '--decode',
        action='store_true',
        help='load every image and annotation; counts the pixels of label maps',
    )
    parser.add_argument(
        '--num-workers', type=int, default=2, help='processes of --decode (default: 2)'
    )
    parser.add_argument(
        '--download',
        action='store_true',
        help="download what is missing, where the data set's class can (CIFAR, MNIST)",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from ..data.check import check

    return check(args)
