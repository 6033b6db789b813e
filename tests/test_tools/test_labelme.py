"""LabelMe's files: what is read, refused and noted."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from mmattn.data import convert
from mmattn.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with five images of 64 x 96 pixels."""
    monkeypatch.chdir(tmp_path)
    save_images(*(f'{index}.png' for index in range(5)))
    return tmp_path


def save_images(*names: str):
    for name in names:
        Path('images', name).parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (96, 64)).save(Path('images', name))


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
    convert.main(['--arch', 'ivit_nano', *args, '--out', 'data/cells', '--no-estimate'])
    documents = [
        json.loads(Path(f'data/cells/annotations/instances_{split}.json').read_text())
        for split in ('train', 'val')
    ]
    return [entry for each in documents for entry in each['annotations']]


REFUSED = {  # what writes the annotations, and the error
    'points': (write_labelme, shape('polygon', [1, 1], [2, 2]), 'needs 3 points'),
    'label': (write_labelme, shape('polygon', label=None), 'with a "label"'),
    'strings': (write_labelme, shape('polygon', *[['1', 1]] * 3), 'must be pairs'),
    'no-shape': (write_labelme, 'x', 'json/0.json: shapes[0] must be'),
    'far-circle': (
        write_labelme,
        shape('circle', [1e300, 1], [1, 1]),
        '"segmentation"',
    ),
    'mask-text': (write_labelme, masked('1100', '0110', mask='a'), '"mask" must be a'),
    'mask-none': (write_labelme, masked('1100', '0110', mask=None), '"mask" must be a'),
    'mask-size': (write_labelme, masked('1100'), 'has the shape (1, 4), but its point'),
    'mask-far': (
        write_labelme,
        masked('11', points=[[95, 1], [96, 1]]),
        'are a box of (1, 2) in an image of (64, 96)',
    ),
    'labelme-size': (lambda: write_labelme(imageWidth=97), '64 x 97 pixels'),
    'other-image': (lambda: write_labelme(imagePath='a.png'), '"imagePath" must be'),
}


@pytest.mark.parametrize('case', REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_one_line(case):
    write, *args, message = case
    args = write(*args)
    with pytest.raises(UserError) as error:
        run(args)
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
    assert not Path('data/cells').exists()


READ = {  # what writes annotations; box, area, outline of the first; what is said
    'rectangle': (
        *(write_labelme, shape('rectangle', [30, 25], [10, 5])),
        *([10, 5, 20, 20], 400, None, "1 images without a file, such as '4.png' are l"),
    ),
    'group': (
        *(write_labelme, shape('polygon', [10, 10], [30, 10], [30, 30], group_id=1)),
        *(shape('rectangle', [50, 10], [60, 30], group_id=1), [10, 10, 50, 20], 410),
        *([[10, 10, 30, 10, 30, 30], [50, 10, 60, 10, 60, 30, 50, 30]], 'masks'),
    ),
    'lines': (
        *(write_labelme, shape('rectangle', [10, 5], [30, 25]), shape('line', [1, 1])),
        *([10, 5, 20, 20], 400, None, '4 shapes of json are left out, as they have no'),
    ),
}


@pytest.mark.parametrize('case', READ.values(), ids=READ)
def test_what_is_read(case, capsys):
    """Given boxes stay, and areas equal pycocotools'."""
    write, *args, box, area, outline, said = case
    entry, *others = run(write(*args))
    assert entry['bbox'] == pytest.approx(box)
    assert entry['area'] == pytest.approx(area, rel=0.05)
    if outline is None:
        assert 'segmentation' not in entry
    else:
        parts = zip(entry['segmentation'], outline, strict=True)
        assert all(given == pytest.approx(part) for given, part in parts)
        masks = coco_mask.frPyObjects(entry['segmentation'], 64, 96)
        assert entry['area'] == coco_mask.area(coco_mask.merge(masks))
    assert sorted(e['id'] for e in [entry, *others] if e['id'] == 1) == [1, 1]
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_a_circle_is_a_polygon():
    entry, *_ = run(write_labelme(shape('circle', [30, 30], [40, 30])))
    assert entry['bbox'] == pytest.approx([20, 20, 20, 20])
    assert entry['area'] == pytest.approx(np.pi * 100, rel=0.02)


def test_masks_of_labelme():
    """A mask and a polygon of one group are one object."""
    square = shape('polygon', [20, 20], [30, 20], [30, 30], [20, 30], group_id=1)
    args = write_labelme(
        masked('1100', '0110', group_id=1), square, masked('1001', '0000')
    )
    first, second, *_ = run(args)
    mask = np.zeros((64, 96), np.uint8)
    mask[10, 20:22] = mask[11, 21:23] = mask[20:30, 20:30] = 1
    np.testing.assert_array_equal(coco_mask.decode(first['segmentation']), mask)
    assert (first['bbox'], first['area']) == ([20, 10, 10, 20], 104)
    assert (second['bbox'], second['area']) == ([20, 10, 4, 1], 2)
