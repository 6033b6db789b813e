"""Turn annotated images into a data set with a config to train on it."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from PIL import ImageColor

from mmattn.errors import UserError

from ..files.config_text import check_text
from ..models.presets import short_name
from . import estimate, formats, own_config, own_data
from .archs import find_arch
from .class_folders import (
    choose_images,
    class_roots,
    read_folders,
    write_folders,
)
from .class_table import read_table
from .classes import check_classes, choose_classes, merged, warn_of_unseen
from .folders import build
from .image_files import darkness, dropped
from .label_maps import (
    LabelMap,
    Legend,
    from_label_maps,
    name_alike,
    read_legend,
    write_label_maps,
)
from .layouts import Part, find_parts, leaks, split
from .layouts.parts import FILES, beside
from .layouts.splits import Wishes
from .layouts.yolo import find_names
from .tiles import Tiling, cut_maps, cut_pictures

WHOLE = 'val_whole'  # the validation images, not cut into tiles


def parts_of(args: argparse.Namespace) -> dict[str, list[Part]]:
    """Return where the images and annotations of each split are.

    Raises:
        ValueError: they are not where they can be found.
    """
    parts = find_parts(args.format, args.images, args.annotations)
    for name in ('val', 'test'):
        folder = getattr(args, f'{name}_folder')
        annotations = getattr(args, f'{name}_annotations')
        if folder is None and annotations is None:
            continue
        if annotations is not None:
            train = parts.get('train') or parts['all']
            part = Part(folder or train[0].images, annotations)
        elif args.format in FILES:
            part = find_parts(args.format, folder).get('all', [None])[0]
        else:
            part = beside(args.format, folder)
        if part is None:
            raise UserError(f'--{name}-folder {folder} has splits of its own')
        parts[name] = [part]
    if len(parts) > 1 and 'all' in parts:
        parts = {'train': parts.pop('all'), **parts}
    parts = {
        name: [replace(part, channels=args.channels) for part in found]
        for name, found in parts.items()
    }
    if len(parts) > 1:
        for name, found in parts.items():
            print(f'{name}: {"; ".join(map(str, found))}')
    return parts


def divide(items: dict[str, list], args: argparse.Namespace) -> dict[str, list]:
    """Return the items of each split, and print how they are divided."""
    wishes = Wishes(args.val, args.test, args.val_images, args.seed)
    splits, text = split(items, wishes)
    print(f'images: {text}')
    paths = [item.path for item in splits['train']]
    of_rgb = () if args.channels else (darkness(paths), dropped(paths))
    for warning in leaks(splits), *of_rgb:
        if warning:
            print(f'warning: {warning}', file=sys.stderr)
    return splits


def read(
    args: argparse.Namespace,
) -> tuple[dict[str, list[own_data.Picture]], list[str]]:
    """Return the pictures of each split of the data, and the names of their classes.

    Raises:
        ValueError: nothing is annotated, or the number of names is another.
    """
    parts = parts_of(args)
    if args.format == 'masks':
        pictures, classes = {}, []
        for name, found in parts.items():
            pictures[name], each = own_data.from_masks(found[0])
            if classes and each != classes:
                raise UserError(
                    f'{found[0]} must have the folders {", ".join(classes)}, got '
                    f'{", ".join(each)}'
                )
            classes = each
        if args.masks is False:
            for picture in (p for found in pictures.values() for p in found):
                picture.masks = []
    else:
        extra = []
        if args.format == 'yolo':
            extra = [args.yaml or find_names(args.images, parts) or args.classes]
            if extra == [None]:
                raise UserError(
                    f'{args.images} has no file with the names of the classes: '
                    '--yaml names one, and --classes gives the names of the numbers '
                    '0, 1, ...'
                )
        pictures, classes = formats.read_objects(
            args.format, parts, *extra, masks=args.masks
        )
    classes = choose_classes(pictures, classes, args.classes, args.merge)
    images = [picture for found in pictures.values() for picture in found]
    if not any(picture.labels for picture in images):
        where = args.annotations or args.images
        raise UserError(f'{where} has no object in {len(images)} images')
    check_classes(classes)
    return pictures, classes


def settings_of(args: argparse.Namespace) -> own_config.Settings:
    tiling = None
    if args.tile is not None:
        tiling = Tiling(args.tile, args.overlap, args.min_visible, args.empty_tiles)
    return own_config.Settings(
        find_arch(args.arch),
        args.pretrained,
        args.factor,
        tiling,
        args.flip,
        args.channels,
    )


def cut_all_but_tests(
    whole: dict[str, list], tiling: Tiling | None, cut: Callable, seed: int
) -> dict[str, list]:
    """Return the tiles of each split, and the whole images to test on.

    Without tiles, all images stay whole.
    """
    if tiling is None:
        return whole
    splits = {
        name: cut(found, tiling=tiling, seed=seed if name == 'train' else None)
        for name, found in whole.items()
        if name != 'test'
    }
    splits['test' if 'test' in whole else WHOLE] = whole.get('test', whole['val'])
    return splits


def convert_objects(args: argparse.Namespace) -> own_config.Written:
    """Write a data set of objects, and return the text of its config."""
    for option in ('ignore', 'palette'):
        if getattr(args, option):
            raise UserError(f'--{option} is for label maps; --classes chooses classes')
    settings = settings_of(args)
    pictures, classes = read(args)
    whole = divide(pictures, args)
    warn_of_unseen(
        {
            name: {classes[label] for picture in found for label in picture.labels}
            for name, found in whole.items()
        }
    )
    splits = cut_all_but_tests(whole, settings.tiling, cut_pictures, args.seed)
    write = partial(own_data.write_coco, splits, classes)
    build(write, args.out, options(args), force=args.force)
    most = max(len(picture.boxes) for found in whole.values() for picture in found)
    return own_config.detection(args.out, classes, splits, settings, most)


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


def legend_of(args: argparse.Namespace, parts: dict[str, list[Part]]) -> Legend:
    """Return what the values of label maps mean.

    Raises:
        ValueError: no names are known, or colors and names differ in number.
    """
    names, palette = args.classes, None
    if names is None:
        found = read_legend([part for each in parts.values() for part in each])
        if found is None:
            raise UserError(
                'labels needs --classes, the names of the numbers 0, 1, ... in the maps'
            )
        names, palette = found
    check_classes(names)
    if args.palette is not None:
        palette = [color_number(color, '--palette') for color in args.palette]
        if len(palette) != len(names) or len(set(palette)) < len(palette):
            raise UserError(
                f'--palette must have a color of its own for each of the '
                f'{len(names)} classes, got {" ".join(args.palette)}'
            )
    parse = color_number if palette else whole_number
    ignored = [parse(value, '--ignore') for value in args.ignore]
    values = list(range(len(names))) if palette is None else palette
    classes, numbers = merged(names, args.merge)
    return Legend(
        classes, dict(zip(values, numbers, strict=True)), ignored, palette is not None
    )


def convert_label_maps(args: argparse.Namespace) -> own_config.Written:
    """Write a data set of label maps, and return the text of its config."""
    if args.masks is not None:
        raise UserError('--boxes and --masks are for objects, and labels has none')
    settings = settings_of(args)
    parts = parts_of(args)
    legend = legend_of(args, parts)
    items: dict[str, list[LabelMap]] = {
        name: [each for part in found for each in from_label_maps(part)]
        for name, found in parts.items()
    }
    name_alike([each for found in items.values() for each in found])
    whole = divide(items, args)
    cut = partial(cut_maps, legend=legend)
    splits = cut_all_but_tests(whole, settings.tiling, cut, args.seed)

    def write(folder: Path) -> dict:
        counts = write_label_maps(splits, legend, folder)
        warn_of_unseen(
            {
                name: {label for label, share in count['shares'].items() if share}
                for name, count in counts.items()
                if name != WHOLE
            }
        )
        return counts

    build(write, args.out, options(args), force=args.force)
    return own_config.segmentation(args.out, legend.classes, splits, settings)


def convert_classes(args: argparse.Namespace) -> own_config.Written:
    """Write a data set of images with classes, and return the text of its config."""
    for option in ('masks', 'ignore', 'palette', 'tile', 'factor'):
        if getattr(args, option):
            raise UserError(f'--{option} is not for the classes of whole images')
    if places := class_roots(args):
        items = read_folders(places)
    else:
        parts = {split: found[0] for split, found in parts_of(args).items()}
        items = {split: read_table(part) for split, part in parts.items()}
        places = {split: part.annotations for split, part in parts.items()}
    items = choose_images(items, places, args.classes, args.merge)
    check_classes(sorted({each.folder for found in items.values() for each in found}))
    splits = divide(items, args)
    warn_of_unseen(
        {name: {each.folder for each in found} for name, found in splits.items()}
    )
    build(partial(write_folders, splits), args.out, options(args), force=args.force)
    return own_config.classification(args.out, splits, settings_of(args))


def options(args: argparse.Namespace) -> dict:
    """Return what the content of the data set depends on."""
    others = ('out', 'arch', 'pretrained', 'factor', 'flip', 'no_estimate', 'force')
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if name not in others and value is not None
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


def convert(args: argparse.Namespace) -> Path:
    """Write a data set and its config as the arguments say; return the config.

    Args:
        args: of `cli.data_convert`.
    """
    check_text(args.out.as_posix(), '--out')
    check_text(args.pretrained or '', '--pretrained')
    find_arch(args.arch)
    special = {'labels': convert_label_maps, 'classes': convert_classes}
    written = special.get(args.format, convert_objects)(args)
    for warning in written.warnings:
        print(f'warning: {warning}', file=sys.stderr)
    name = f'{written.method}_{short_name(args.arch)}_{args.out.name}.py'
    path = args.out.parent / name
    write_config(written.text, path)
    if not args.no_estimate:
        print('timing a few steps (--no-estimate leaves this out)', flush=True)
        print(estimate.describe(path, halve=not written.small))
    return path
