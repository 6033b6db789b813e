"""COCO, YOLO, VOC and LabelMe files: what is read, refused and noted.

`mmattn.data.coco_json` also reads for training, whose tests are in `test_engine`.
"""

import json
from pathlib import Path

import conversions
import numpy as np
import pytest
from annotated import (
    coco,
    image,
    masked,
    rle,
    run,
    save_images,
    shape,
    without,
    write_coco,
    write_labelme,
    write_voc,
    write_yolo,
)
from PIL import Image
from pycocotools import mask as coco_mask

from mmattn.data.coco_json import read_coco
from mmattn.errors import UserError

SQUARE = [10, 10, 30, 10, 30, 30, 10, 30]
TRIANGLE = [5, 5, 25, 5, 15, 30]
BOMB = 'a: &a [x, x]\nb: &b [*a, *a]\nnames: [*b]'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with five images of 64 x 96 pixels."""
    monkeypatch.chdir(tmp_path)
    save_images(*(f'{index}.png' for index in range(5)))
    return tmp_path


def polygon(*numbers) -> dict:
    return coco(segmentation=[[*numbers]])


def run_lengths(*arguments) -> dict:
    return coco(segmentation=rle(*arguments))


def xml(text: str):
    return lambda: write_voc(text=text)


XYXY = coco(*(dict(bbox=[50 + i, 20, 80, 60]) for i in range(5)))
SHIFTED = coco(*[dict(bbox=[70, 5, 20, 20])] * 2, segmentation=[TRIANGLE])
FAR_MASK = masked('11', points=[[95, 1], [96, 1]])


def other_names(**values) -> list[str]:
    args = write_labelme(**values)
    for path in Path('json').iterdir():
        path.rename(path.with_stem(f'x{path.stem}'))
    return args


REFUSED = {  # what writes the annotations, and the error
    'no-json': (write_coco, {}, lambda _: '{', 'a.json is no JSON file: Expecting'),
    'deep': (write_coco, {}, lambda _: '[' * 10**5, 'a.json is no JSON file: maximum'),
    'list': (write_coco, [], 'a.json must be an object of COCO, got []'),
    'no-images': (write_coco, dict(a=[]), "['a']: export the annotations as"),
    'captions': (write_coco, coco(caption='a', bbox=None), 'a.json has captions or'),
    'panoptic': (write_coco, coco(segments_info=[], bbox=None), 'or panoptic segments'),
    'outlines': (write_coco, SHIFTED, '2 of 5 outlines lie outside of their boxes'),
    'no-categories': (write_coco, without('categories'), '"categories" must be a list'),
    'no-width': (write_coco, image(width='96'), 'image 1 (\'1.png\'): "width" must be'),
    'width': (write_coco, image(width=64, height=96), '96 x 64 pixels (height x width'),
    'same-id': (write_coco, image(id=0), 'image 0 is listed twice, the second time as'),
    'no-file': (write_coco, image(file_name='i/1.png'), "a file in images, got 'i/"),
    'climbs': (write_coco, image(file_name='..\\1.png'), '"file_name" must lie inside'),
    'no-name': (write_coco, image(file_name=None), '"file_name" must be text'),
    'no-image-id': (write_coco, coco(image_id=None), 'annotation 1: has no image_id'),
    'no-image': (write_coco, coco({}, dict(image_id=9)), '(image 9): has the image_id'),
    'no-box': (write_coco, coco(bbox=None), '(image 0): has neither "bbox"'),
    'count': (write_coco, coco({}, dict(bbox='x'), dict(bbox=[1])), 'and 1 more'),
    'text': (write_coco, coco(bbox=['1'] * 4, id=None), 'annotations[0] (image 0)'),
    'nan': (write_coco, coco(bbox=[float('nan'), 1, 2, 3]), 'four numbers of pixels'),
    '1e308': (write_coco, coco(bbox=[1e308] * 4), 'four numbers of pixels'),
    'negative': (write_coco, coco(bbox=[9, 9, -5, 5]), 'negative width'),
    'far': (write_coco, coco(bbox=[500, 9, 5, 5]), 'far outside its image'),
    'xyxy': (write_coco, XYXY, '5 of 5 boxes reach beyond their images, and none'),
    'fractions': (write_coco, coco(bbox=[0.1, 0.2, 0.3, 0.4]), 'not fractions'),
    'far-polygon': (write_coco, polygon(0, 0, 9, 9, 500, 9), 'far outside'),
    'huge-polygon': (write_coco, polygon(0, 0, 1e308, 0, 1, 1), 'must have'),
    'odd-polygon': (write_coco, polygon(*[1] * 7), 'a polygon of 7 numbers'),
    'no-polygon': (write_coco, coco(segmentation='x'), 'must be a list of polygons or'),
    'rle-size': (write_coco, run_lengths(96, 64, [6144]), 'a mask of 96 x 64 pixels'),
    'rle-sum': (write_coco, run_lengths(64, 96, [9, 9]), 'not add up to the 6144'),
    # pycocotools decodes both to what was in memory.
    'rle-short': (write_coco, run_lengths(64, 96, '99'), 'do not add up'),
    'rle-cut': (write_coco, run_lengths(64, 96, 'P'), 'damaged run lengths'),
    'rle-text': (write_coco, run_lengths(64, 96, '\ud800'), 'do not add up'),
    'area-nan': (write_coco, coco(area=float('nan')), '"area" must be a number of'),
    'area': (write_coco, coco(area='9'), '"area" must be a number of pixels, got'),
    'crowd': (write_coco, coco(iscrowd=2), '"iscrowd" must be 0 or 1, got 2'),
    'pixels': (write_yolo, '0 48 32 9 9', 'must have fractions'),
    'yolo-nan': (write_yolo, '0 nan .5 .1 .1', 'must have fractions'),
    'yolo-odd': (write_yolo, '0 .1 .1 .2 .2 .3 .3 .4', 'labels/0.txt: line 1 must'),
    'yolo-class': (write_yolo, '5 .5 .5 .1 .1', 'has the class 5, but data.yaml'),
    'yaml-aliases': (write_yolo, '', BOMB, 'data.yaml cannot be read as YAML: alias'),
    'yaml-deep': (write_yolo, '', '[' * 10**5, 'lists inside each other'),
    'yaml-code': (write_yolo, '', 'a: !!python/name:os.system', 'determine a construc'),
    'yaml-date': (write_yolo, '', 'a: 2001-99-99', 'YAML: month must'),
    'yaml-names': (write_yolo, '', 'names: [[a]]', 'data.yaml must have "names"'),
    'yaml-keys': (write_yolo, '', 'names: {0: a, b: c}', 'from numbers to names'),
    'voc-extra': (lambda: write_voc(count=6), 'xml: 1 files without'),
    'one-stem': (lambda: save_images('0.tif') or write_voc(), 'have one name; rename'),
    'voc-name': (lambda: write_voc(extra=''), 'xml/0.xml: object 1 has no <name>'),
    'voc-text': (write_voc, 'ten 6 30 26', "<bndbox/xmin> must be a number, got 'ten'"),
    'voc-nan': (write_voc, 'nan 6 30 26', 'xml/0.xml: object 1: "bbox" must be four'),
    'voc-turned': (write_voc, '50 6 30 26', 'has a negative width or height, the box'),
    'voc-size': (lambda: write_voc(size='96 64'), 'xml/0.xml says that'),
    'cvat-xml': (xml('<annotations/>'), 'got <annotations>: export the annotations as'),
    'voc-no-xml': (xml('<a'), 'be read as XML: unclosed'),
    'voc-code': (xml('<?xml version="1.0" encoding="x"?><a/>'), ': unknown encoding'),
    'points': (write_labelme, shape('polygon', [1, 1], [2, 2]), 'needs 3 points'),
    'label': (write_labelme, shape('polygon', label=None), 'with a "label"'),
    'strings': (write_labelme, shape('polygon', *[['1', 1]] * 3), 'must be pairs'),
    'labelme-no-shape': (write_labelme, 'x', 'json/0.json: shapes[0] must be'),
    'far-circle': (write_labelme, shape('circle', [1e300, 1], [1, 1]), 'segmentation'),
    'mask-text': (write_labelme, masked('1100', '0110', mask='a'), '"mask" must be a'),
    'mask-none': (write_labelme, masked('1100', '0110', mask=None), '"mask" must be a'),
    'mask-size': (write_labelme, masked('1100'), 'has the shape (1, 4), but its point'),
    'mask-far': (write_labelme, FAR_MASK, 'box of (1, 2) in an image of (64, 96)'),
    'labelme-size': (lambda: write_labelme(imageWidth=97), '64 x 97 pixels'),
    'other-image': (lambda: other_names(imagePath='a.png'), '"imagePath" must be'),
    'image-7': (lambda: other_names(imagePath=7), 'must be an image in images, got 7'),
}


@pytest.mark.parametrize('case', REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_one_line(case):
    write, *args, message = case
    args = write(*args)
    with pytest.raises(UserError) as error:
        run(args)
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
    assert not Path('data/set').exists()


def test_a_photo_that_its_annotations_do_not_turn(here):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new('RGB', (96, 64)).save('images/t.jpg', exif=exif)
    args = write_coco(image(file_name='t.jpg'))
    with pytest.raises(UserError, match=r'images/t.jpg has 64 x 96 .* it has 96 x 64'):
        run(args)


def marked(content) -> str:
    return '\ufeff' + json.dumps(content)


POLYGONS = dict(segmentation=[TRIANGLE])
NUMBERLESS = dict.fromkeys(('bbox', 'area', 'id', 'iscrowd'))
BOX, BUS, LEAF = [10, 10, 20, 20], [36, 16, 24, 32], [10, 5, 20, 20]
POSE, LINE = 'kpt_shape: [1, 2]\nnames: {1: bus}', [1, 2, 3, 4]
YOLO_POLYGON = '0 .25 .25 .5 .25 .5 .75'
LEAF_SHAPE = shape('rectangle', [30, 25], [10, 5])
GROUP = (
    shape('polygon', [10, 10], [30, 10], [30, 30], group_id=1),
    shape('rectangle', [50, 10], [60, 30], group_id=1),
)
UNLISTED = "that no annotations list, such as '4.png', are"
GROUPED = [[10, 10, 30, 10, 30, 30], [50, 10, 60, 10, 60, 30, 50, 30]]
IGNORED = shape('rectangle', [9, 9], [20, 20], label='__ignore__')
READ = {  # what writes; its arguments; box, area and outline of the first; what is said
    'boxes': (write_coco, [coco()], BOX, 400, None, 'boxes alone: 0'),
    'polygons': (write_coco, [coco(**POLYGONS)], BOX, 250, [TRIANGLE], 'masks'),
    'computed': (
        *(write_coco, [coco(**NUMBERLESS, **POLYGONS)], [5, 5, 20, 25], 250),
        *([TRIANGLE], 'get masks: 5 of 5'),
    ),
    'one-outline': (
        *(write_coco, [coco(POLYGONS)], BOX, 400, None),
        'boxes alone: 1 of 5 objects have an outline; --masks decides otherwise',
    ),
    'rectangles': (  # as SAHI writes them
        *(write_coco, [coco(segmentation=[SQUARE])], BOX, 400, None),
        '0 of 5 objects have an outline, 5 one that is the rectangle of their box',
    ),
    'most-outlines': (
        *(write_coco, [coco(dict(segmentation=[]), **POLYGONS)], BOX, 400, [SQUARE]),
        'and 1 get the rectangle of their box',
    ),
    'flat': (
        *(write_coco, [coco(segmentation=TRIANGLE)], BOX, 250, [TRIANGLE]),
        'annotation 1 (image 0): has a polygon outside of a list of polygons (and 4',
    ),
    'line': (
        *(write_coco, [coco(segmentation=[TRIANGLE, LINE])], BOX, 250, [TRIANGLE]),
        'a polygon of fewer than three points',
    ),
    'beyond': (
        *(write_coco, [coco(dict(bbox=[80, -4, 30, 20]))], [80, 0, 16, 16], 256, None),
        'reaches beyond its image, the box [80, -4, 30, 20] [x, y, width, height] in',
    ),
    'outside': (
        *(write_coco, [coco(dict(bbox=[70, 5, 20, 20]), **POLYGONS)], [5, 5, 20, 25]),
        *(250, [TRIANGLE], 'has an outline outside of its box; the outline counts'),
    ),
    'partly-hidden': (
        *(write_coco, [coco(dict(bbox=[5, 5, 80, 50]), **POLYGONS)], [5, 5, 80, 50]),
        *(250, [TRIANGLE], 'masks'),
    ),
    'area-0': (
        write_coco,
        [coco(dict(area=0))],
        BOX,
        400,
        None,
        'has the area 0; it is',
    ),
    'mark': (write_coco, [coco(), marked], BOX, 400, None, 'boxes'),
    'yolo': (write_yolo, ['1 .5 .5 .25 .5'], BUS, 768, None, "'4': no"),
    'track': (write_yolo, ['1.0 .5 .5 .25 .5 7'], BUS, 768, None, 'boxes'),
    'pose': (write_yolo, ['1 .5 .5 .25 .5 .4 .4', POSE], BUS, 768, None, 'boxes'),
    'yolo-polygon': (
        *(write_yolo, [YOLO_POLYGON, 'names: [1]'], [24, 16, 24, 32], 384),
        *([[24, 16, 48, 16, 48, 48]], 'masks'),
    ),
    'voc': (write_voc, [], [10, 5, 20, 21], 420, None, 'boxes'),
    'voc-no-size': (write_voc, dict(size='0 0'), [10, 5, 20, 21], 420, None, 'boxes'),
    'labelme': (write_labelme, [LEAF_SHAPE], LEAF, 400, None, UNLISTED),
    'labelme-turned': (
        *(write_labelme, [shape('rotation', [20, 9], [31, 20], [20, 31], [9, 20])]),
        *([9, 9, 22, 22], 242, [[20, 9, 31, 20, 20, 31, 9, 20]], 'masks'),
    ),
    'labelme-group': (write_labelme, GROUP, [10, 10, 50, 20], 410, GROUPED, 'masks'),
    'labelme-ignore': (
        *(write_labelme, [LEAF_SHAPE, IGNORED], LEAF, 400, None),
        'they are no objects or have no area: 4 of __ignore__',
    ),
    'labelme-renamed': (
        *(lambda s: write_labelme(s, imagePath='a.png'), [LEAF_SHAPE], LEAF, 400, None),
        '4 files name no image and are taken for the image of their own name, su',
    ),
    'labelme-lines': (
        *(write_labelme, [LEAF_SHAPE, shape('line', [1, 1])], LEAF, 400, None),
        '4 shapes of json are left out, as they are no',
    ),
}


@pytest.mark.parametrize('case', READ.values(), ids=READ)
def test_what_is_read(case, capsys):
    """Given boxes stay, and areas equal pycocotools'."""
    write, given, box, area, outline, said = case
    args = write(**given) if isinstance(given, dict) else write(*given)
    entry, *others = run(args)
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


def test_classes_that_may_be_one_are_named(capsys):
    args = write_voc(extra='<name>Bird</name>')
    path = Path('xml/0.xml')
    path.write_text(path.read_text().replace('Bird', 'bird'))
    run(args)
    assert '--merge "Bird=Bird,bird"' in capsys.readouterr().err
    run([*args, '--merge', 'Bird=Bird,bird'])
    assert 'alike' not in capsys.readouterr().err


def test_difficult_objects_are_crowds():
    found = run(write_voc(extra='<name>a</name><difficult>1</difficult>'))
    assert [entry['iscrowd'] for entry in found] == [1] * 5


@pytest.mark.parametrize('option', ['--boxes', '--masks'])
def test_the_user_decides(option):
    found = run([*write_coco(coco(POLYGONS)), option])
    outlines = [entry.get('segmentation') for entry in found]
    others = [[SQUARE]] * 4
    expected = [None] * 5 if option == '--boxes' else [[TRIANGLE], *others]
    assert sorted(map(str, outlines)) == sorted(map(str, expected))
    method = 'faster_rcnn' if option == '--boxes' else 'mask_rcnn'
    assert Path(f'data/{method}_ivit_n_set.py').exists()


def test_objects_without_a_pixel_are_never_written(capsys):
    boxes = [100, 9, 20, 20], [9, 9, 0, 9]
    objects = [*(dict(bbox=box, segmentation=None) for box in boxes), dict()]
    objects.append(dict(segmentation=rle(64, 96, [64 * 96])))
    found = run([*write_coco(coco(*objects, **POLYGONS)), '--val', '0.5'])
    assert len(found) == 2 and min(entry['area'] for entry in found) == 250
    assert '3 objects of less than a pixel, or outside' in capsys.readouterr().err


def test_images_of_one_name_stay_apart():
    names = [f'{folder}/{i}.png' for folder in 'xy' for i in range(3)]
    save_images(*names)
    run([*write_coco(coco(names=names)), '--val-images', 'y/*'])
    written = sorted(str(p.relative_to('data/set')) for p in Path().rglob('set/*/?/*'))
    assert written == [
        *(f'train/x/{i}.png' for i in range(3)),
        *(f'val/y/{i}.png' for i in range(3)),
    ]
    content = json.loads(Path('data/set/annotations/instances_val.json').read_text())
    assert [each['file_name'] for each in content['images']] == names[3:]


@pytest.mark.parametrize('given', [['images', 'a.json'], ['.']])
@pytest.mark.parametrize('folders', ['images', '{here}/images'])
def test_names_in_a_json_may_begin_with_the_folder_of_images(given, here, folders):
    """As LabelMe's and Label Studio's exports do."""
    folders = folders.format(here=here.name)
    write_coco(coco(names=[f'{folders}/{index}.png' for index in range(5)]))
    run(['coco', *given])
    written = {path.name for path in Path('data/set').glob('*/*.png')}
    assert written == {f'{index}.png' for index in range(5)}


def test_a_file_under_two_ids_is_one_picture_and_a_note(capsys):
    found = run(write_coco(image(file_name='0.png')))
    assert len(found) == 5 and len(list(Path('data/set').glob('*/?.png'))) == 4
    assert "'0.png' is listed under several ids, [0, 1]" in capsys.readouterr().err


def test_the_category_above_all_others_is_no_class(capsys):
    document = coco()
    document['categories'].insert(0, dict(id=0, name='cells', supercategory='none'))
    assert {entry['category_id'] for entry in run(write_coco(document))} == {1}
    text = Path('data/faster_rcnn_ivit_n_set.py').read_text()
    assert "classes=('cell',)" in text
    assert "the class 'cells' has no object" in capsys.readouterr().err


def test_bytes_are_read_under_a_name():
    data = json.dumps(coco(**POLYGONS)).encode()
    assert read_coco(data, 'mine', masks=True)[1] == []
    message = '^mine: annotation 1 .* has no outline in "seg'
    with pytest.raises(UserError, match=message):
        read_coco(json.dumps(coco()).encode(), 'mine', masks=True)


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


def test_a_class_called_object_stays(here):
    lines = '0.png,1,1,9,9,object\n1.png,1,1,9,9,person\n2.png,1,1,9,9,\n'
    Path('boxes.csv').write_text('filename,xmin,ymin,xmax,ymax,class\n' + lines * 2)
    found = conversions.run('csv', 'images', 'boxes.csv', '--val-images', '0.png')
    assert [c['name'] for c in found['train']['categories']] == ['object', 'person']
    labels = [entry['category_id'] for entry in found['train']['annotations']]
    assert sorted(labels) == [1, 1, 2, 2]
