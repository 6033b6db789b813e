"""Read annotated images of common formats, and write them as mm packages read them."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask
from tqdm import tqdm

from mmattn.errors import UserError

from ..images import read_image, read_labels
from ..results.coco import encode_mask
from .coco_json import object_area

IMAGE_SUFFIXES = ('.png', '.jpg', '.jpeg', '.tif', '.tiff', '.bmp', '.webp')
MIN_AREA = 4  # pixels; a smaller part of a mask is dust
IGNORED = 255  # the label that losses and metrics of segmentation ignore
MUCH = 0.01  # share of the pixels that is not the border of objects


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
    """

    path: Path
    size: tuple[int, int]
    labels: list[int] = field(default_factory=list)
    boxes: list[list[float]] = field(default_factory=list)
    masks: list[dict | list] = field(default_factory=list)
    crowds: set[int] = field(default_factory=set)
    name: str = ''

    def __post_init__(self):
        self.name = self.name or self.path.name


def image_files(folder: Path) -> dict[str, Path]:
    """Return the images of a folder by their names without suffix, in order.

    Raises:
        ValueError: there is none, or two have one name.
    """
    if not folder.is_dir():
        raise UserError(f'{folder} is no folder')
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        if path.stem in files:
            raise UserError(
                f'{files[path.stem]} and {path} have one name; rename one of them'
            )
        files[path.stem] = path
    if not files:
        raise UserError(
            f'{folder} has no image; accepted suffixes: {", ".join(IMAGE_SUFFIXES)}'
        )
    return files


def image_size(path: Path) -> tuple[int, int]:
    """Return height and width, turned by the EXIF orientation.

    Raises:
        ValueError: the file is no image.
    """
    return read_image(path).shape[:2]


def read_mask(path: Path, size: tuple[int, int], colors: bool = False) -> np.ndarray:
    """Return a mask of the size of its image: numbers, or RGB if `colors` is set.

    Raises:
        ValueError: it is no image, has colors, or another size.
    """
    mask = read_image(path) if colors else read_labels(path)
    if mask.shape[:2] != size:
        raise UserError(
            f'{path} has {mask.shape[0]} x {mask.shape[1]} pixels, but its image has '
            f'{size[0]} x {size[1]}'
        )
    return mask


def encode(mask: np.ndarray) -> tuple[dict, list[float]]:
    """Return the run-length encoding and the box of a binary mask (H, W)."""
    rle = encode_mask(mask)
    return rle, coco_mask.toBbox(rle).tolist()


def matching(images: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Return the masks of a folder by the names of images.

    Raises:
        ValueError: an image has no mask, or a mask no image.
    """
    masks = image_files(folder)
    for kind, missing in (
        ('images without a mask', images.keys() - masks.keys()),
        ('masks without an image', masks.keys() - images.keys()),
    ):
        if missing:
            raise UserError(
                f'{folder}: {len(missing)} {kind}, such as {min(missing)!r}; an image '
                'and its mask have the same name, apart from the suffix'
            )
    return masks


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


def from_masks(images: Path, masks: Path) -> tuple[list[Picture], list[str]]:
    """Read images with masks in which each object has a number.

    `masks` has a mask for each image, or a folder of such masks for each class. Where
    all masks of a class have one number, its objects are the connected parts.

    Returns:
        Pictures, and the names of the folders of classes; one name for a single class.
    """
    files = image_files(images)
    folders = sorted(path for path in masks.iterdir() if path.is_dir())
    classes = [folder.name for folder in folders] or ['object']
    pictures = {name: Picture(p, image_size(p)) for name, p in files.items()}
    for label, folder in enumerate(folders or [masks]):
        found = {
            name: read_mask(path, pictures[name].size)
            for name, path in tqdm(matching(files, folder).items(), classes[label])
        }
        largest = max(np.unique(mask[mask > 0]).size for mask in found.values())
        if largest == 1:
            print(f'{folder}: the masks have one number; connected pixels are objects')
        for name, mask in found.items():
            picture = pictures[name]
            for instance in instances(mask, largest == 1):
                if instance.sum() < MIN_AREA:
                    continue
                rle, box = encode(instance)
                picture.labels.append(label)
                picture.boxes.append(box)
                picture.masks.append(rle)
    return list(pictures.values()), classes


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
        for picture in tqdm(pictures, f'write {split}'):
            target = folder / split / picture.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture.path, target)
        content = coco_dict(pictures, classes)
        path = folder / 'annotations' / f'instances_{split}.json'
        path.write_text(json.dumps(content, allow_nan=False))
        objects = len(content['annotations'])
        counts[split] = {'images': len(pictures), 'objects': objects}
    return counts


def question_about_255(pixels: Sequence[int], classes: Sequence[str]) -> str | None:
    """Return what to ask where 255 covers much and a class has no pixel.

    Args:
        pixels: of each number from 0 to 255.
        classes: names of the classes.
    """
    absent = [name for name, count in zip(classes, pixels, strict=False) if not count]
    share = pixels[IGNORED] / max(sum(pixels), 1)
    if not absent or share <= MUCH:
        return None
    return (
        f'255 covers {share:.1%} of the pixels and is ignored, while '
        f'{", ".join(absent)} has no pixel. Is 255 a class? If it is, pass `mmattn '
        "data convert labels` the gray of each class (--palette '#000000' '#ffffff'); "
        'if it is not, pass --ignore 255'
    )


def class_numbers(
    path: Path,
    size: tuple[int, int],
    classes: Sequence[str],
    ignored: Sequence[int] = (),
    palette: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the label map of an image in uint8: classes from 0, and `IGNORED`.

    Args:
        path: file of the label map.
        size: height and width of its image.
        classes: names of the classes.
        ignored: numbers, or colors where there is a palette, that are no class.
        palette: color of each class as red << 16 | green << 8 | blue, for a map whose
            colors are classes.

    Raises:
        ValueError: a number or a color is no class.
    """
    mask = read_mask(path, size, palette is not None)
    if palette is not None:
        mask = mask.astype(np.int32) @ np.array((1 << 16, 1 << 8, 1), np.int32)
    known = list(range(len(classes))) if palette is None else palette
    ignored = [*ignored, *([IGNORED] if palette is None else [])]
    numbers = np.full(mask.shape, IGNORED, np.uint8)
    left = ~np.isin(mask, ignored)
    for number, value in enumerate(known):
        here = mask == value
        numbers[here] = number
        left &= ~here
    if left.any():
        value = int(mask[left][0])
        if palette is None:
            what, accepted = f'the number {value}', f'0 to {len(classes) - 1}'
            ignore = value
        else:
            ignore = f"'#{value:06x}'"
            what = f'the color #{value:06x}'
            accepted = 'of the colors ' + ' '.join(f'#{each:06x}' for each in palette)
        raise UserError(
            f'{path} has {what}, but there are {len(classes)} classes, {accepted} '
            f'({", ".join(classes)}); if it is no class, pass --ignore {ignore}'
        )
    return numbers


def write_label_maps(
    splits: dict[str, list[tuple[Path, Path]]],
    classes: Sequence[str],
    folder: Path,
    ignored: Sequence[int] = (),
    palette: Sequence[int] | None = None,
) -> dict:
    """Write `images/SPLIT/` and `labels/SPLIT/` of pairs of an image and a label map.

    Args:
        splits: pairs of each split.
        classes: names of the classes.
        folder: to write into.
        ignored: see `class_numbers`.
        palette: see `class_numbers`.

    Raises:
        ValueError: a label map has a number that is no class, or 255 may be one.
    """
    counts = {}
    total = np.zeros(IGNORED + 1, np.int64)
    for split, pairs in splits.items():
        for kind in ('images', 'labels'):
            (folder / kind / split).mkdir(parents=True)
        pixels = np.zeros_like(total)
        for image, labels in tqdm(pairs, f'write {split}'):
            size = image_size(image)
            mask = class_numbers(labels, size, classes, ignored, palette)
            pixels += np.bincount(mask.ravel(), minlength=len(pixels))
            shutil.copyfile(image, folder / 'images' / split / image.name)
            Image.fromarray(mask).save(folder / 'labels' / split / f'{image.stem}.png')
        total += pixels
        pixels = pixels[: len(classes)]
        shares = pixels / max(pixels.sum(), 1)
        counts[split] = {
            'images': len(pairs),
            'shares': {
                n: round(float(s), 4) for n, s in zip(classes, shares, strict=True)
            },
        }
    question = question_about_255(total, classes)
    if question and IGNORED not in ignored and palette is None:
        raise UserError(f'{pairs[0][1].parent}: {question}')
    return counts
