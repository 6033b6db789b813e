"""Turn your own annotated images into a data set with a config to train on it.

    mmattn data convert masks IMAGES MASKS --out data/cells --classes cell
    mmattn data convert labels IMAGES LABEL_MAPS --out data/land \
        --classes water forest city
    mmattn data convert yolo IMAGES LABELS --yaml data.yaml --out data/cars
    mmattn data convert voc IMAGES XML_FILES --out data/birds
    mmattn data convert labelme IMAGES JSON_FILES --out data/leaves
    mmattn data convert coco IMAGES JSON_FILE --out data/ships

`masks` and the last four give boxes and, where most objects have outlines, masks in
COCO's format. `labels` gives maps of classes for semantic segmentation. The config is
written beside the folder and is yours to edit. A few timed steps tell how long it
trains here.
"""

import argparse
import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import ImageColor

from mmattn.errors import UserError

from ..files.config_text import check_text
from . import estimate, formats, own_config, own_data
from .folders import build

FORMATS = ('masks', 'labels', 'yolo', 'voc', 'labelme', 'coco')
Pair = tuple[Path, Path]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('format', choices=FORMATS)
    parser.add_argument('images', type=Path, help='folder of the images')
    parser.add_argument('annotations', type=Path, help='folder or file of annotations')
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    parser.add_argument(
        '--classes',
        nargs='+',
        help='names of the classes, in the order of their numbers; by default as in '
        'the annotations',
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
    parser.add_argument('--yaml', type=Path, help='data.yaml of yolo')
    parser.add_argument(
        '--val',
        type=float,
        default=0.2,
        help='share of the images to validate on, drawn at random; default 0.2',
    )
    parser.add_argument(
        '--val-images',
        metavar='PATTERN',
        help='validate on the images of these names instead, such as "*_day3_*"; '
        'use it where images are frames of a film or parts of one picture',
    )
    parser.add_argument('--seed', type=int, default=0, help='of the random draw')
    parser.add_argument(
        '--arch',
        choices=list(own_config.CHANNELS),
        default='nano',
        help='size of IViT in the config; nano is the one for a CPU',
    )
    parser.add_argument(
        '--no-estimate',
        action='store_true',
        help='do not time three steps to estimate how long the training takes',
    )
    parser.add_argument('--force', action='store_true', help='write the folder anew')
    return parser.parse_args(argv)


def split(
    items: Sequence, name: Callable[[object], str], args: argparse.Namespace
) -> dict[str, list]:
    """Divide items into `train` and `val`.

    Raises:
        ValueError: one of the two would be empty.
    """
    if args.val_images is not None:
        is_val = [fnmatch.fnmatch(name(item), args.val_images) for item in items]
    else:
        if not 0 < args.val < 1:
            raise UserError(f'--val must be between 0 and 1, got {args.val}')
        drawn = np.random.default_rng(args.seed).permutation(len(items))
        chosen = set(drawn[: max(1, round(args.val * len(items)))].tolist())
        is_val = [index in chosen for index in range(len(items))]
    parts = {
        'train': [item for item, val in zip(items, is_val, strict=True) if not val],
        'val': [item for item, val in zip(items, is_val, strict=True) if val],
    }
    for part, found in parts.items():
        if not found:
            hint = args.val_images or args.val
            raise UserError(
                f'of {len(items)} images none is left for {part} ({hint!r}); change '
                '--val or --val-images'
            )
    return parts


def read(args: argparse.Namespace) -> tuple[list[own_data.Picture], list[str]]:
    """Return pictures with objects, and the names of their classes.

    Raises:
        ValueError: nothing is annotated, or the number of names is another.
    """
    if args.format == 'masks':
        pictures, classes = own_data.from_masks(args.images, args.annotations)
        if args.masks is False:
            for picture in pictures:
                picture.masks = []
    else:
        extra = [args.yaml] if args.format == 'yolo' else []
        if None in extra:
            raise UserError('yolo needs --yaml, the file with the names of the classes')
        pictures, classes = formats.read_objects(
            args.format, args.images, args.annotations, *extra, masks=args.masks
        )
    if args.classes is not None:
        if len(args.classes) != len(classes):
            raise UserError(
                f'--classes has {len(args.classes)} names, but {args.annotations} has '
                f'{len(classes)} classes: {", ".join(classes)}'
            )
        classes = args.classes
    if not any(picture.labels for picture in pictures):
        raise UserError(f'{args.annotations} has no object in {len(pictures)} images')
    check_classes(classes)
    return pictures, classes


def check_classes(classes: Sequence[str]) -> None:
    """Raise ValueError if a name could become code in the config."""
    for name in classes:
        check_text(name, 'a class name')


def convert_objects(args: argparse.Namespace) -> str:
    """Write a data set of objects, and return the text of its config."""
    pictures, classes = read(args)
    splits = split(pictures, lambda picture: picture.name, args)

    def write(folder: Path) -> dict:
        return own_data.write_coco(splits, classes, folder)

    build(write, args.out, options(args), force=args.force)
    return own_config.detection(args.out, classes, splits, args.arch)


def color_number(text: str, option: str) -> int:
    """Return a color such as '#ff0000' as a number."""
    try:
        red, green, blue = ImageColor.getcolor(text, 'RGB')
    except ValueError as error:
        raise UserError(
            f"{option} must have colors such as '#ff0000', got {text!r}"
        ) from error
    return red << 16 | green << 8 | blue


def whole_number(text: str, option: str) -> int:
    """Return a number of a label map."""
    if not text.isdecimal():
        raise UserError(f'{option} must have numbers of label maps, got {text!r}')
    return int(text)


def convert_label_maps(args: argparse.Namespace) -> str:
    """Write a data set of label maps, and return the text of its config."""
    if args.classes is None:
        raise UserError(
            'labels needs --classes, the names of the numbers 0, 1, ... in the maps'
        )
    if args.masks is not None:
        raise UserError('--boxes and --masks are for objects, and labels has none')
    check_classes(args.classes)
    images = own_data.image_files(args.images)
    labels = own_data.matching(images, args.annotations)
    pairs = [(images[name], labels[name]) for name in images]
    splits = split(pairs, lambda pair: pair[0].name, args)
    palette = None
    if args.palette is not None:
        palette = [color_number(color, '--palette') for color in args.palette]
        if len(palette) != len(args.classes) or len(set(palette)) < len(palette):
            raise UserError(
                f'--palette must have a color of its own for each of the '
                f'{len(args.classes)} classes, got {" ".join(args.palette)}'
            )
    parse = color_number if palette else whole_number
    ignored = [parse(value, '--ignore') for value in args.ignore]

    def write(folder: Path) -> dict:
        return own_data.write_label_maps(splits, args.classes, folder, ignored, palette)

    build(write, args.out, options(args), force=args.force)
    return own_config.segmentation(args.out, args.classes, splits, args.arch)


def options(args: argparse.Namespace) -> dict:
    """Return what the content of the data set depends on."""
    names = ('format', 'images', 'annotations', 'classes', 'masks')
    names += ('ignore', 'palette')
    names += ('val', 'val_images', 'seed')
    return {
        name: str(value) if isinstance(value, Path) else value
        for name in names
        if (value := getattr(args, name)) is not None
    }


def write_config(text: str, path: Path) -> None:
    """Write a config where there is none yet."""
    if path.exists():
        print(f'{path} is kept as it is; remove it to get a new one')
    else:
        path.write_text(text, encoding='utf-8')
    print(
        'next:\n'
        f'  mmattn data check {path}\n'
        f'  mmattn train {path}\n'
        f'  mmattn predict work_dirs/{path.stem} IMAGES'
    )


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_text(args.out.as_posix(), '--out')
    if args.format == 'labels':
        text, method = convert_label_maps(args), 'upernet'
    else:
        text = convert_objects(args)
        method = 'mask_rcnn' if 'MaskRCNN' in text else 'faster_rcnn'
    name = f'{method}_ivit_{args.arch[0]}_{args.out.name}.py'
    write_config(text, args.out.parent / name)
    if not args.no_estimate:
        print('timing a few steps (--no-estimate leaves this out)', flush=True)
        print(estimate.describe(args.out.parent / name))
