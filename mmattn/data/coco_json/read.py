"""Read a COCO json, index it, and number it for an evaluation."""

import contextlib
import io
from pathlib import Path

from .check import check_coco
from .values import read_json


def read_coco(
    source: str | Path | bytes, name: str | None = None, *, masks: bool = False
) -> tuple[dict, list[str]]:
    """Read a COCO json from a file or its bytes, and check it.

    Args:
        source: path, or the bytes of the file.
        name: name of the file in errors; by default its path.
        masks: whether each object must have an outline.

    Returns:
        The content of the file, and sentences about what is unusual and may be meant.
        Annotations have an `id` from 1 on, `bbox`, `area` and `iscrowd`; their
        `segmentation` is absent, a list of polygons, or run lengths.

    Raises:
        OSError: the file cannot be read.
        ValueError: an image, a category or an annotation cannot be meant.
    """
    name = name or str(source)
    content = read_json(source, name)
    return content, check_coco(content, name, masks=masks)


def index(content: dict, api):
    """Return an API of pycocotools or faster-coco-eval with an index of `content`.

    Args:
        content: as from `read_coco`.
        api: an API without a file.
    """
    api.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        api.createIndex()
    if hasattr(api, 'cat_img_map'):  # mmdet's names of the two maps
        api.img_ann_map, api.cat_img_map = api.imgToAnns, api.catToImgs
    return api


def numbered(content: dict) -> tuple[dict, dict]:
    """Return a copy of annotations with numbers from 1 as ids, for an evaluation.

    COCOeval reads ids as whole numbers, takes the annotation 0 for none, and sorts the
    classes by their ids. Here they are sorted already.

    Args:
        content: as from `read_coco`.

    Returns:
        The content, and the new ids of images by the old ones.
    """
    ids = {
        key: {entry['id']: number for number, entry in enumerate(content[key], 1)}
        for key in ('images', 'categories')
    }
    copies = {
        key: [entry | dict(id=ids[key][entry['id']]) for entry in content[key]]
        for key in ids
    }
    copies['annotations'] = [
        entry
        | dict(
            id=number,
            image_id=ids['images'][entry['image_id']],
            category_id=ids['categories'][entry['category_id']],
        )
        for number, entry in enumerate(content['annotations'], 1)
    ]
    return content | copies, ids['images']
