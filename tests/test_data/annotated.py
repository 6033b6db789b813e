"""Write images and their annotations in each format, and convert them."""

import base64
import io
import json
import zlib
from pathlib import Path

import conversions
import numpy as np
from PIL import Image


def save_images(*names: str):
    """Write an image of a color of its own for each name."""
    for name in names:
        Path('images', name).parent.mkdir(parents=True, exist_ok=True)
        color = tuple(zlib.crc32(name.encode()).to_bytes(4)[:3])
        Image.new('RGB', (96, 64), color).save(Path('images', name))


def coco(*changes: dict, names=tuple(f'{i}.png' for i in range(5)), **everywhere):
    """A document with an object in each image; None as a value removes a key."""
    annotations = []
    for number, _ in enumerate(names):
        entry = dict(id=number + 1, image_id=number, category_id=1, iscrowd=0)
        entry |= dict(bbox=[10, 10, 20, 20], area=400) | everywhere
        entry |= changes[number] if number < len(changes) else {}
        annotations.append({k: v for k, v in entry.items() if v is not None})
    images = [
        dict(id=number, file_name=name, height=64, width=96)
        for number, name in enumerate(names)
    ]
    categories = [dict(id=1, name='cell', supercategory='cells')]
    return dict(images=images, annotations=annotations, categories=categories)


def without(key: str) -> dict:
    return {k: v for k, v in coco().items() if k != key}


def image(**values) -> dict:
    document = coco()
    document['images'][1] |= values
    return document


def rle(height: int, width: int, counts) -> dict:
    return dict(size=[height, width], counts=counts)


def write_coco(content, text=json.dumps) -> list[str]:
    Path('a.json').write_text(text(content), encoding='utf-8')
    return ['coco', 'images', 'a.json']


def write_yolo(line: str, names: str = 'names: [car, bus]') -> list[str]:
    Path('labels').mkdir()
    for index in range(4):  # an image without a file has no object
        Path(f'labels/{index}.txt').write_text(line)
    Path('data.yaml').write_text(names)
    return ['yolo', 'images', 'labels', '--yaml', 'data.yaml']


def write_voc(
    box='11 6 30 26', extra='<name>bird</name>', size='64 96', text='', count=5
) -> list[str]:
    Path('xml').mkdir()
    height, width = size.split()
    keys = 'xmin', 'ymin', 'xmax', 'ymax'
    box = ''.join(f'<{k}>{v}</{k}>' for k, v in zip(keys, box.split(), strict=True))
    whole = (
        f'<annotation><size><width>{width}</width><height>{height}</height></size>'
        f'<object>{extra}<bndbox>{box}</bndbox></object></annotation>'
    )
    for index in range(count):
        Path(f'xml/{index}.xml').write_text(text or whole)
    return ['voc', 'images', 'xml']


def shape(kind: str, *points, **values) -> dict:
    return dict(label='leaf', shape_type=kind, points=points) | values


def png(*rows: str) -> str:
    """Return a mask of 0 and 1 as a PNG file in base64."""
    file = io.BytesIO()
    pixels = np.array([[int(cell) for cell in row] for row in rows], bool)
    Image.fromarray(pixels).save(file, 'PNG')
    return base64.b64encode(file.getvalue()).decode()


def masked(*rows: str, **values) -> dict:
    return shape('mask', [20.0, 10.0], [23.0, 11.0], mask=png(*rows)) | values


def write_labelme(*shapes, **values) -> list[str]:
    Path('json').mkdir()
    for index in range(4):
        content = dict(imagePath=f'..\\{index}.png', imageHeight=64, imageWidth=96)
        content |= dict(shapes=shapes) | values
        Path(f'json/{index}.json').write_text(json.dumps(content))
    return ['labelme', 'images', 'json']


def run(args: list[str]) -> list[dict]:
    """Convert, and return all annotations."""
    documents = conversions.run(*args).values()
    return [entry for each in documents for entry in each['annotations']]
