"""Pictures with objects: read from masks, and written as mm packages read them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask
from tqdm import tqdm

from mmattn.errors import UserError

from ..results.coco import encode_mask
from .coco_json import object_area
from .image_files import (
    MASK_SUFFIXES,
    folders_in,
    image_files,
    image_size,
    is_hidden,
    matching,
)
from .label_maps import IGNORED, read_mask
from .layouts import Part
from .layouts.names import ANNOTATIONS, IMAGES, child
from .layouts.parts import LISTED
from .notes import say, some
from .windows import Window, write_image

BORDER = 0xE0E0C0  # the color of 255 in Pascal VOC's palette
MIN_AREA = 4  # pixels; a smaller part of a mask is dust
THIN = 5  # pixels; objects are wider somewhere


@dataclass
class Picture:
    """An image and its objects.

    Attributes:
        path: file of the image.
        size: height and width.
        labels: index of the class of each object.
        boxes: x, y, width and height of each object.
        masks: run-length encoding or polygons of each object; empty if there are boxes
            only.
        crowds: indices of the objects that are groups, which training leaves out.
        name: path of the file that is written, relative to the folder of its split; by
            default the name of `path`.
        window: the part of the image that is written; None for the whole image.
    """

    path: Path
    size: tuple[int, int]
    labels: list[int] = field(default_factory=list)
    boxes: list[list[float]] = field(default_factory=list)
    masks: list[dict | list] = field(default_factory=list)
    crowds: set[int] = field(default_factory=set)
    name: str = ''
    window: Window | None = None

    def __post_init__(self):
        self.name = self.name or self.path.name


def encode(mask: np.ndarray) -> tuple[dict, list[float]]:
    """Return the run-length encoding and the box of a binary mask (H, W)."""
    rle = encode_mask(mask)
    return rle, coco_mask.toBbox(rle).tolist()


def instances(mask: np.ndarray, is_binary: bool) -> Iterator[np.ndarray]:
    """Yield a binary mask of each object of a mask with numbers, 0 for none.

    Args:
        mask: shape (H, W).
        is_binary: whether connected pixels are an object, instead of equal numbers.
    """
    if is_binary:
        _, mask = cv2.connectedComponents((mask > 0).astype(np.uint8))
    for number in np.unique(mask[mask > 0]):
        yield mask == number


def are_smoothed(masks: Iterable[np.ndarray]) -> bool:
    """Return whether masks are 255 with thin gray borders, as a resize leaves them."""
    square, is_gray = np.ones((THIN, THIN), np.uint8), False
    for mask in masks:
        gray = ((mask > 0) & (mask != 255)).astype(np.uint8)
        if mask.max() not in (0, 255) or cv2.erode(gray, square, borderValue=0).any():
            return False
        is_gray = is_gray or gray.any()
    return bool(is_gray)


def surrounds(mask: np.ndarray) -> bool:
    """Return whether a mask has most pixels and some of each border, as backgrounds."""
    borders = mask[0], mask[-1], mask[:, 0], mask[:, -1]
    return (mask > 0).mean() > 0.5 and all(map(np.any, borders))


def numbers_of_voc(path: Path, size: tuple[int, int]) -> np.ndarray:
    """Return the numbers of a mask of Pascal VOC without the borders of objects.

    They have 255 of the palette. CVAT writes the colors of the palette for its numbers.
    """
    with Image.open(path) as opened:
        mode = opened.mode
    if mode == 'RGB':
        colors = read_mask(path, size, [BORDER])
        return np.where(colors == BORDER, 0, colors)
    mask = read_mask(path, size)
    return np.where(mask == IGNORED, 0, mask) if mode == 'P' else mask


def masks_of_objects(
    part: Part, files: dict[str, Path]
) -> dict[Path, list[Path]] | None:
    """Return the mask files of each image where each object has a file, or None.

    They are in a folder called like the image, or in `masks/` beside the `images/` of a
    single image, as in the Data Science Bowl of 2018.

    Args:
        part: images and masks.
        files: its images by their names.

    Raises:
        ValueError: an image has no such folder.
    """
    if part.images != part.annotations:
        folders = {path: part.annotations / name for name, path in files.items()}
        if set(folders_in(part.annotations)) - set(folders.values()):
            return None
    else:
        images = [p for p in files.values() if p.parent.name.lower() in IMAGES]
        folders = {p: child(p.parents[1], ANNOTATIONS['masks']) for p in images}
        if len({path.parent for path in images}) < len(images):
            return None
    masks = {
        path: [
            file
            for file in sorted(folder.iterdir())
            if file.suffix.lower() in MASK_SUFFIXES and not is_hidden(Path(file.name))
        ]
        for path, folder in folders.items()
        if folder and folder.is_dir()
    }
    if not any(len(found) > 1 for found in masks.values()):
        return None
    if missing := {str(path) for path in folders.keys() - masks.keys()}:
        what = 'images without a folder of masks'
        raise UserError(some(len(missing), missing, what))
    return masks


def _picture(part: Part, path: Path) -> Picture:
    name = path.relative_to(part.images).as_posix()
    return Picture(path, image_size(path, part.channels), name=name)


def from_masks_of_objects(part: Part, masks: dict[Path, list[Path]]) -> list[Picture]:
    """Return the images of a part with the objects of their mask files."""
    pictures = []
    for path, files in tqdm(masks.items(), 'read', disable=None):
        picture = _picture(part, path)
        for file in files:
            mask = read_mask(file, picture.size)
            if np.unique(mask[mask > 0]).size > 1:
                raise UserError(
                    f'{file} must be the mask of one object of {path.name}, which has '
                    f'{len(files)} files, and has several numbers'
                )
            _add(picture, 0, mask > 0)
        pictures.append(picture)
    return pictures


def _add(picture: Picture, label: int, mask: np.ndarray):
    """Add an object, but no dust."""
    if mask.sum() >= MIN_AREA:
        rle, box = encode(mask)
        picture.labels.append(label)
        picture.boxes.append(box)
        picture.masks.append(rle)


def from_masks(part: Part) -> tuple[list[Picture], list[str]]:
    """Read images with masks in which each object has a number, or a file.

    The annotations have a mask for each image, or a folder of such masks for each
    class. Where all masks of a class have one number, its objects are the connected
    parts.

    Returns:
        Pictures, and the names of the folders of classes; one name for a single class.
    """
    root = part.annotations
    files = image_files(part.images, beside=root, names=part.names)
    masks = masks_of_objects(part, files)
    if masks is not None:
        print(f'{part}: each mask file is an object')
        return from_masks_of_objects(part, masks), ['object']
    inner = {name.partition('/')[0] for name in files if '/' in name}
    folders = [path for path in folders_in(root) if path.name not in inner]
    folders = [] if root == part.images else folders
    classes = [folder.name for folder in folders] or ['object']
    pictures = {name: _picture(part, path) for name, path in files.items()}
    for label, folder in enumerate(folders or [root]):
        paths = matching(files, folder, some_only=part.names is not None)
        of_voc = folder.name == LISTED['masks']
        read = numbers_of_voc if of_voc else read_mask
        masks = {
            name: read(path, pictures[name].size)
            for name, path in tqdm(paths.items(), classes[label], disable=None)
        }
        largest = max(np.unique(mask[mask > 0]).size for mask in masks.values())
        is_binary = largest == 1 and not of_voc
        if not of_voc and are_smoothed(masks.values()):
            say(f'{folder}: the masks have smoothed borders; objects are 128 and above')
            masks, is_binary = {n: mask >= 128 for n, mask in masks.items()}, True
        elif is_binary:
            print(f'{folder}: the masks have one number; connected pixels are objects')
        around = [name for name, mask in masks.items() if is_binary and surrounds(mask)]
        if 2 * len(around) > len(masks):
            what = 'masks have most of their pixels and all borders in objects'
            say(
                f'{folder}: {some(len(around), around, what)}: if these are the '
                'background, invert the masks'
            )
        for name, mask in masks.items():
            picture = pictures[name]
            for instance in instances(mask, is_binary):
                _add(picture, label, instance)
    return [pictures[name] for name in files], classes


def coco_dict(pictures: Sequence[Picture], classes: Sequence[str]) -> dict:
    """Return pictures in COCO's format."""
    content = {
        'info': {},
        'licenses': [],
        'images': [],
        'annotations': [],
        'categories': [{'id': i + 1, 'name': name} for i, name in enumerate(classes)],
    }
    for number, picture in enumerate(pictures, 1):
        height, width = picture.size
        content['images'].append(
            dict(id=number, file_name=picture.name, width=width, height=height)
        )
        for index, (label, box) in enumerate(
            zip(picture.labels, picture.boxes, strict=True)
        ):
            annotation = dict(
                id=len(content['annotations']) + 1,
                image_id=number,
                category_id=label + 1,
                bbox=box,
                iscrowd=int(index in picture.crowds),
            )
            if picture.masks:
                annotation['segmentation'] = picture.masks[index]
            annotation['area'] = object_area(annotation, picture.size)
            content['annotations'].append(annotation)
    return content


def write_coco(
    splits: dict[str, list[Picture]], classes: Sequence[str], folder: Path
) -> dict:
    """Write `SPLIT/` and `annotations/instances_SPLIT.json` of each split.

    Returns:
        The number of images and of objects of each split.
    """
    (folder / 'annotations').mkdir()
    counts = {}
    for split, pictures in splits.items():
        (folder / split).mkdir()
        for picture in tqdm(pictures, f'write {split}', disable=None):
            write_image(picture.path, folder / split / picture.name, picture.window)
        content = coco_dict(pictures, classes)
        path = folder / 'annotations' / f'instances_{split}.json'
        path.write_text(json.dumps(content, allow_nan=False))
        objects = len(content['annotations'])
        counts[split] = {'images': len(pictures), 'objects': objects}
    return counts
