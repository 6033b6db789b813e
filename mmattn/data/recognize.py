"""Find out what a folder of annotated images is, and write a config for it."""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mmattn.errors import UserError

from ..cli import data_convert
from ..files.config_text import check_text
from ..images import read_image
from ..models.presets import short_name
from . import convert, own_config
from .archs import Arch
from .classes import check_classes
from .folders import CARD
from .formats import read_objects
from .formats.csv import has_boxes
from .image_files import MASK_ENDS, MASK_SUFFIXES, is_hidden
from .label_maps import COLOR, LEGENDS, from_label_maps
from .layouts import Part
from .layouts.names import split_of
from .layouts.yolo import find_yaml

SPLITS = 'train', 'val'
HEAD = 1 << 16  # characters of a JSON file in which the words of `WORDS` are
WORDS = {'labelme': '"shapes"', 'via': '"regions"'}
MAPS = {  # names of folders
    'masks': re.compile(r'^masks?|[-_ ]masks?$'),
    'labels': re.compile(
        r'^(labels?|lbl|annot|ann_|segmentation|ground|gts?$)'
        r'|annot$|[-_ ](labels?|gt|segmentations?)$'
    ),
}
MANY = 0.05  # colors of a photograph, as a share of its pixels
KINDS = """\
{data} is none of the layouts that are recognized:
  a folder that `mmattn data convert` wrote, or a config (.py)
  images with .txt files (YOLO), .xml files (VOC), a .json (COCO, VIA) or .csv file
  for each split, or a .json file for each image (LabelMe)
  images/ and masks/, with a number for each object
  images/ and labels/*.png, with a number for each class, and `classes`
  a folder of images for each class, or a .csv file with the class of each image
`mmattn data convert --help` reads others: pass the config that it writes"""


def config_for(
    data: Path,
    arch: Arch,
    pretrained: str | None = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Return a config that trains on a folder of annotated images, or a given one.

    What is not laid out as the mm packages read it is converted, into a folder beside
    it. A config that exists is kept.

    Args:
        data: config, or folder of images and annotations.
        arch: backbone.
        pretrained: weights to start from, 'none' for random ones; None takes the
            published ones of the backbone.
        classes: names, in the order of their numbers, where annotations have none.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: nothing is recognized, or annotations are wrong.
    """
    if data.is_file() and data.suffix == '.py':
        return data
    if not data.is_dir():
        raise FileNotFoundError(f'there is no folder or config at {data}')
    check_text(data.as_posix(), 'the folder of the data')
    if has_objects(data):
        written = _objects(data, arch, pretrained)
    elif has_label_maps(data):
        written = _label_maps(data, arch, pretrained, classes)
    else:
        return _converted(data, arch, pretrained, classes)
    path = data.parent / f'{written.method}_{short_name(arch.name)}_{data.name}.py'
    if not path.exists():
        path.write_text(written.text, encoding='utf-8')
    return path


def _converted(
    data: Path, arch: Arch, pretrained: str | None, classes: Sequence[str] | None
) -> Path:
    kind = format_of(data)
    if kind is None:
        raise UserError(KINDS.format(data=data))
    given = ['--classes', *classes] if classes else []
    given += [] if pretrained is None else ['--pretrained', pretrained]
    out = data.parent / f'{data.name}_mmattn'
    options = ['--out', str(out), '--arch', arch.name, '--no-estimate']
    args = data_convert.parse_args([kind, str(data), *options, *given])
    return convert.convert(args)


def has_objects(data: Path) -> bool:
    """Return whether a folder is laid out as `own_data.write_coco` does."""
    return all(
        (data / f'annotations/instances_{split}.json').is_file()
        and (data / split).is_dir()
        for split in SPLITS
    )


def has_label_maps(data: Path) -> bool:
    """Return whether a folder is what `label_maps.write_label_maps` wrote."""
    return (data / CARD).is_file() and all(
        (data / kind / split).is_dir()
        for kind in ('images', 'labels')
        for split in SPLITS
    )


def _objects(data: Path, arch: Arch, pretrained: str | None) -> own_config.Written:
    parts = {
        split: [Part(data / split, data / f'annotations/instances_{split}.json')]
        for split in (*SPLITS, 'test')
        if (data / f'annotations/instances_{split}.json').is_file()
    }
    splits, classes = read_objects('coco', parts, masks=None)
    check_classes(classes)
    settings = own_config.Settings(arch, pretrained)
    return own_config.detection(data, classes, splits, settings)


def _label_maps(
    data: Path, arch: Arch, pretrained: str | None, classes: Sequence[str] | None
) -> own_config.Written:
    card = json.loads((data / CARD).read_text())
    classes = classes or card['options'].get('classes')
    if not classes:
        raise UserError(
            f'{data / CARD} does not name the classes: pass `classes`, or the config '
            'that `mmattn data convert` wrote'
        )
    splits = {
        split: from_label_maps(Part(data / 'images' / split, data / 'labels' / split))
        for split in (*SPLITS, 'test')
        if (data / 'images' / split).is_dir()
    }
    settings = own_config.Settings(arch, pretrained)
    return own_config.segmentation(data, classes, splits, settings)


def format_of(data: Path) -> str | None:
    """Return the format of `mmattn data convert` that a folder has, None for none."""
    found, pictures, jsons, tables = Counter(), [], [], []
    texts, names, folders = set(), set(), set()
    first = {}  # picture in and below each folder
    for folder, _, files in os.walk(data, followlinks=True):
        around = Path(folder).relative_to(data)
        if is_hidden(around):
            continue
        files = {name for name in files if not name.startswith('.')}
        names.update(files)
        for file in (Path(folder, name) for name in sorted(files - {CARD})):
            suffix = file.suffix.lower()
            found[suffix] += 1
            if suffix in MASK_SUFFIXES:
                pictures.append(file.stem)
                folders.add(file.parent.name.lower())
                for name in around.parts:
                    first.setdefault(name.lower(), file)
            elif suffix == '.txt':
                texts.add(file.stem)
            elif suffix == '.json':
                jsons.append(file)
            elif suffix == '.csv':
                tables.append(file)
    texts = len(texts.intersection(pictures))
    if texts and (find_yaml(data) or texts > found['.xml'] and not jsons):
        return 'yolo'
    if 4 * found['.xml'] > len(pictures):  # masks may be pictures, too
        return 'voc'
    if jsons:
        with jsons[0].open(encoding='utf-8', errors='replace') as file:
            head = file.read(HEAD)
        return next((kind for kind, word in WORDS.items() if word in head), 'coco')
    are_masks = any(stem.lower().endswith(MASK_ENDS) for stem in pictures)
    if are_masks and not names.isdisjoint(LEGENDS):
        return 'labels'
    for kind, name_of_maps in MAPS.items():
        maps = (file for name, file in first.items() if name_of_maps.search(name))
        if len(first) > 1 and not all(map(is_photograph, maps)):
            return kind
    classes = [name for name in folders if split_of(name) is None]
    if tables and len(classes) < 2:
        return 'csv' if any(map(has_boxes, tables)) else 'classes'
    return 'classes' if len(classes) > 1 else None


def is_photograph(path: Path) -> bool:
    """Return whether an image has many colors, unlike a mask or a label map.

    Photographs of faces may lie in the folders `mask` and `no_mask`.
    """
    try:
        pixels = read_image(path).astype(np.int32) @ COLOR
    except UserError:
        return False
    return np.unique(pixels).size > MANY * pixels.size
