"""Names that folders and files of data sets have, whoever writes them."""

import re
from collections.abc import Iterable
from pathlib import Path

from ..image_files import IMAGE_SUFFIXES, folders_in, is_hidden

SPLITS = ('train', 'val', 'test')
WORDS = {
    'train': 'train',
    'training': 'train',
    'val': 'val',
    'valid': 'val',
    'validation': 'val',
    'dev': 'val',
    'test': 'test',
    'testing': 'test',
    'imagestr': 'train',  # nnU-Net's
    'imagests': 'test',
}
IMAGES = (
    *('images', 'image', 'imgs', 'img', 'jpegimages', 'leftimg8bit'),
    *('img_dir', 'images_prepped'),  # of mmsegmentation and keras-segmentation
)
ANNOTATIONS = {  # the first that is there counts
    'csv': ('annotations',),
    'labelme': ('annotations', 'annotation', 'labels', 'label', 'json', 'jsons'),
    'labels': (
        *('segmentationclasspng', 'segmentationclass', 'labels', 'label', 'masks'),
        *('mask', 'annotations', 'annotation', 'gtfine', 'groundtruth'),
        *('ground_truth', 'gt', 'gts', 'segmentation', 'segmentations'),
        *('ann_dir', 'annotations_prepped'),
    ),
    'masks': (
        *('segmentationobject', 'masks', 'mask', 'labels', 'label', 'annotations'),
        *('annotation', 'groundtruth', 'ground_truth', 'gt'),
    ),
    'voc': (
        *('annotations', 'annotation', 'annots', 'annot', 'xml', 'xmls'),
        *('labels', 'label'),
    ),
    'yolo': ('labels', 'label', 'annotations', 'annotation'),
}
ENDS = ('annot', 'labels', 'label', 'masks', 'mask', 'annotations')


def split_of(name: str) -> str | None:
    """Return the split of a folder, or None.

    It may be called `valid`, `train2017`, `images_train`, `seg_train` or `test_set`.
    """
    word = re.sub(r'[-_]?\d*$', '', without_images(name))
    word = re.sub(r'^(seg|data)[-_ ]|[-_ ]?(set|data)$', '', word)
    return WORDS.get(word, WORDS.get(name.lower()))


def without_images(name: str) -> str:
    """Return the name of a folder in lower case without `images` at an end of it."""
    name, words = name.lower(), '|'.join(sorted(IMAGES, reverse=True))
    if name in IMAGES:
        return name
    return re.sub(rf'[-_ ]({words})$|^({words})([-_ ]|(?=t[rs]$))', '', name)


def annotations_of(kind: str, images: str) -> list[str]:
    """Return names that the folder of annotations may have beside one of images.

    They are in lower case, such as `train_masks`, `trainannot` or `labels_train`.
    """
    name, words = without_images(images), (*ANNOTATIONS[kind], *ENDS)
    pairs = [pair for word in words for pair in ((name, word), (word, name))]
    return [mark.join(pair) for pair in pairs for mark in ('_', '-', ' ', '')]


def split_in(name: str) -> str | None:
    """Return the split that a file such as `instances_val2017.json` holds, or None."""
    words = re.split(r'[-_. ]', name.lower())
    found = {split for word in words if (split := split_of(word))}
    return found.pop() if len(found) == 1 else None


def child(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first folder inside `folder` of these names in lower case, or None."""
    found = {path.name.lower(): path for path in folders_in(folder)}
    return next((found[name] for name in names if name in found), None)


def split_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of splits inside a folder, `train` among them, or none.

    Of a folder that has only one of the same split, as in many archives, it is that.
    """
    found = {}
    # `train` is images where `seg_train` beside it has their maps.
    for path in sorted(folders_in(folder), key=lambda p: p.name.lower() not in WORDS):
        name = split_of(path.name)
        if name is not None:
            while (inner := only_folder(path)) and split_of(inner.name) == name:
                path = inner
            found.setdefault(name, path)
    return {name: found[name] for name in SPLITS if name in found and 'train' in found}


def only_folder(folder: Path) -> Path | None:
    """Return the folder that a folder has inside if it has nothing else, or None."""
    inside = [path for path in folder.iterdir() if not is_hidden(Path(path.name))]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else None


def image_splits(folder: Path) -> dict[str, Path]:
    """Return the folders of splits inside a folder if there is an image in one.

    TensorFlow's tutorials keep a config in `training/` beside `images/`.
    """
    found = split_folders(folder)
    files = (file for path in found.values() for file in path.rglob('*'))
    return found if any(f.suffix.lower() in IMAGE_SUFFIXES for f in files) else {}
