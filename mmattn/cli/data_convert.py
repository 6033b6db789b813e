"""Turn your own annotated images into a data set with a config to train on it.

    mmattn data convert yolo data.yaml --out data/cars
    mmattn data convert coco FOLDER --out data/ships
    mmattn data convert voc IMAGES XML_FILES --out data/birds
    mmattn data convert labelme IMAGES JSON_FILES --out data/leaves
    mmattn data convert via FOLDER --out data/balloons
    mmattn data convert csv IMAGES boxes.csv --out data/trees --tile 400
    mmattn data convert masks IMAGES MASKS --out data/cells --classes cell
    mmattn data convert labels FOLDER --out data/land --classes water forest city
    mmattn data convert classes FOLDER --out data/flowers

`labels` gives maps of classes for semantic segmentation, and `classes` reads folders of
images, or a CSV file, for classification. The others give boxes and, where most objects
have outlines, masks in COCO's format. A split of the data is kept and printed. The
config is written beside the folder and is yours to edit. A few timed steps tell how
long it trains here.
"""

import argparse
from pathlib import Path

from ..data.config_templates import ARCH, FLIPS
from .terminal import add_overlap, command_parser, positive

FORMATS = 'masks', 'labels', 'yolo', 'voc', 'labelme', 'via', 'coco', 'csv', 'classes'


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('format', choices=FORMATS)
    parser.add_argument(
        'images',
        type=Path,
        help='folder of the images, or of the whole data set; data.yaml of yolo',
    )
    parser.add_argument(
        'annotations',
        type=Path,
        nargs='?',
        help='folder or file of annotations; by default it is found',
    )
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    _add_classes(parser)
    _add_splits(parser)
    _add_tiles(parser)
    parser.add_argument(
        '--factor',
        type=float,
        help='resize all images by this factor, in training and in tests: 0.5 is '
        'faster, 2 helps with small objects; by default images keep their size if '
        'they have at most 1333 x 800 pixels or small objects',
    )
    parser.add_argument(
        '--channels',
        type=positive,
        metavar='COUNT',
        help='read TIFF files of this number of channels as they are, in 8 or 16 '
        'bits or as float32; by default images are read in RGB',
    )
    parser.add_argument(
        '--flip',
        choices=FLIPS,
        default='horizontal',
        help='how training flips images at random: `both` also turns them upside down, '
        'as suits aerial and microscopic ones; default: %(default)s',
    )
    parser.add_argument(
        '--arch',
        default=ARCH,
        help='backbone of the config, default %(default)s; `mmattn models --backbones` '
        'lists them with what they start from',
    )
    parser.add_argument(
        '--pretrained',
        metavar='NAME|FILE|none',
        help="weights that the backbone starts from, 'none' for random ones; default: "
        'the published ones of --arch where there are some',
    )
    parser.add_argument(
        '--no-estimate',
        action='store_true',
        help='do not time three steps to estimate how long the training takes',
    )
    parser.add_argument('--force', action='store_true', help='write the folder anew')
    args = parser.parse_args(argv)
    if args.empty_tiles is None:
        args.empty_tiles = 1.0 if args.format == 'labels' else 0.1
    return args


def _add_classes(parser: argparse.ArgumentParser):
    parser.add_argument(
        '--classes',
        nargs='+',
        help='names of the classes to keep, in this order, or new names for all of '
        'them; of label maps, and of YOLO without a file of names, the names of the '
        'numbers 0, 1, ...; by default as in the annotations',
    )
    parser.add_argument(
        '--merge',
        nargs='+',
        default=[],
        metavar='NEW=OLD,OLD',
        help='make one class of several, such as tree=Alive,Dead',
    )
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument(
        '--masks',
        action='store_true',
        default=None,
        help='train on masks; an object without an outline gets the rectangle of its '
        'box. By default at least half of the objects must have outlines',
    )
    shapes.add_argument(
        '--boxes',
        action='store_false',
        dest='masks',
        help='train on boxes, and leave outlines out',
    )
    parser.add_argument(
        '--ignore',
        nargs='+',
        default=[],
        metavar='NUMBER',
        help='numbers of label maps that are no class, such as 11; with --palette, '
        'colors; 255 is ignored anyway',
    )
    parser.add_argument(
        '--palette',
        nargs='+',
        metavar='COLOR',
        help="colors of the classes in label maps whose colors are classes: '#ff0000'",
    )
    parser.add_argument(
        '--yaml', type=Path, help='data.yaml of yolo, or a file with a name in a line'
    )


def _add_splits(parser: argparse.ArgumentParser):
    parser.add_argument(
        '--val',
        type=float,
        metavar='SHARE',
        help='share of the images to validate on, drawn at random; by default the '
        'split of the data, and 0.2 where it has none',
    )
    parser.add_argument(
        '--val-images',
        metavar='PATTERN',
        help='validate on the images of these names instead, such as "*_day3_*"; '
        'use it where images are frames of a film or parts of one picture',
    )
    parser.add_argument(
        '--test', type=float, metavar='SHARE', help='share of the images to test on'
    )
    for split in ('val', 'test'):
        parser.add_argument(
            f'--{split}-folder',
            type=Path,
            metavar='IMAGES',
            help=f'folder of the images of {split}',
        )
        parser.add_argument(
            f'--{split}-annotations',
            type=Path,
            metavar='ANNOTATIONS',
            help=f'their annotations; alone, {split} has the images of training',
        )
    parser.add_argument('--seed', type=int, default=0, help='of the random draws')


def _add_tiles(parser: argparse.ArgumentParser):
    parser.add_argument(
        '--tile',
        type=int,
        metavar='SIDE',
        help='cut the images into tiles of this side after they are divided; tests '
        'see whole images',
    )
    add_overlap(parser)
    parser.add_argument(
        '--min-visible',
        type=float,
        default=0.3,
        metavar='SHARE',
        help='smallest part of an object that counts in a tile (default: %(default)s)',
    )
    parser.add_argument(
        '--empty-tiles',
        type=float,
        metavar='SHARE',
        help='share of the tiles without objects to train on (default: 0.1); of label '
        'maps, of the tiles of a single class (default: 1)',
    )


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    from ..data.convert import convert

    convert(args)
