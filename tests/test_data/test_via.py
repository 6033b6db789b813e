"""mmattn data convert via: JSON files of the VGG Image Annotator."""

import json
from math import pi
from pathlib import Path

import conversions
import pytest
from annotated import run, save_images
from pycocotools import mask as coco_mask

from mmattn.data.recognize import format_of
from mmattn.errors import UserError

TRIANGLE = dict(name='polygon', all_points_x=[10, 30, 30], all_points_y=[5, 5, 25])
POINTS = [10, 5, 30, 5, 30, 25]
RECT = dict(name='rect', x=10, y=5, width=20, height=20)
ELLIPSE = dict(name='ellipse', cx=40, cy=30, rx=20, ry=10)
IMAGES = tuple(f'{number}.png' for number in range(5))


@pytest.fixture(autouse=True)
def here(empty_folder):
    save_images(*IMAGES)


def region(shape: dict, **attributes) -> dict:
    return dict(shape_attributes=shape, region_attributes=attributes)


def write(*regions: dict, project=False, keys=False, **values) -> list[str]:
    """Write regions of each image, and return arguments that convert them."""
    if keys:  # as VIA 1 does
        regions = {str(number): each for number, each in enumerate(regions)}
    entries = {
        f'{name}100': dict(filename=name, size=100, regions=regions) | values
        for name in IMAGES
    }
    document = dict(_via_settings={}, _via_img_metadata=entries) if project else entries
    Path('via.json').write_text(json.dumps(document))
    return ['via', 'images', 'via.json']


@pytest.mark.parametrize(
    'shape, box, area, outline',
    [
        (TRIANGLE, [10, 5, 20, 20], 190, [POINTS]),
        (TRIANGLE | dict(name='polyline'), [10, 5, 20, 20], 190, [POINTS]),
        (RECT, [10, 5, 20, 20], 400, None),
        (dict(name='circle', cx=40, cy=30, r=10), [30, 20, 20, 20], 100 * pi, ...),
        (ELLIPSE, [20, 20, 40, 20], 200 * pi, ...),
        (ELLIPSE | dict(theta=pi / 2), [30, 10, 20, 40], 200 * pi, ...),
        (ELLIPSE | dict(theta=pi / 6), [22, 16.8, 36, 26.5], 200 * pi, ...),
    ],
    ids=['polygon', 'line', 'rect', 'circle', 'ellipse', 'upright', 'turned'],
)
def test_shapes(shape, box, area, outline, capsys):
    entries = run(write(region(shape)))
    assert len(entries) == len(IMAGES)
    for entry in entries:
        assert entry['bbox'] == pytest.approx(box, abs=0.5)
        assert entry['area'] == pytest.approx(area, rel=0.05)
        if outline is not ...:
            assert entry.get('segmentation') == outline
    said = '5 regions of via.json are lines, whose ends are joined'
    assert (said in capsys.readouterr().err) == (shape['name'] == 'polyline')


def test_an_ellipse_turns_as_images_do():
    """In images y points down: a positive angle turns right to down."""
    entry, *_ = run(write(region(ELLIPSE | dict(rx=20, ry=2, theta=pi / 4))))
    mask = coco_mask.decode(coco_mask.frPyObjects(entry['segmentation'], 64, 96)[0])
    assert mask[40, 50] and not mask[20, 50]


@pytest.mark.parametrize('how', [{}, dict(keys=True), dict(project=True)])
def test_each_version_of_the_file(how):
    entries = run(write(region(RECT), region(TRIANGLE), **how))
    assert len(entries) == 2 * len(IMAGES)


def classes_of(*attributes: dict) -> list[str]:
    found = conversions.run(*write(*(region(RECT, **each) for each in attributes)))
    return [each['name'] for each in found['train']['categories']]


@pytest.mark.parametrize(
    'attributes, classes, said',
    [
        ([{}], ['object'], ''),
        ([dict(kind='b '), dict(kind='a')], ['a', 'b'], ''),
        ([dict(a=7, kind='x'), dict(a='', kind='y')], ['x', 'y'], "'kind' of the"),
        ([dict(a='x', Label='b'), dict(a='y', Label='c')], ['b', 'c'], "have 'a'"),
        ([dict(kind=dict(cat=True, dog=False))], ['cat'], ''),
        ([dict(id=7)], ['7'], ''),
    ],
    ids=['none', 'text', 'fuller', 'usual', 'ticked', 'number'],
)
def test_the_attribute_of_the_class(attributes, classes, said, capsys):
    assert classes_of(*attributes) == classes
    err = capsys.readouterr().err
    assert ('note: via.json: the classes are' in err) == bool(said) and said in err


def test_points_are_left_out(capsys):
    entries = run(write(region(RECT), region(dict(name='point', cx=1, cy=1))))
    assert len(entries) == len(IMAGES)
    said = "regions of via.json without an area are left out: 5 of 'point'"
    assert said in capsys.readouterr().err


REFUSED = {
    'coco': (lambda: write(regions=None), 'has no "regions"; export the annotations'),
    'no-region': (lambda: write(7), 'has no "regions"; export the annotations of VIA'),
    'odd': (
        lambda: write(region(TRIANGLE | dict(all_points_x=[1, 2, 3, 4]))),
        'via.json: region 0 of 0.png: a polygon needs as many x as y, 3 or more',
    ),
    'line': (
        lambda: write(
            region(TRIANGLE | dict(all_points_x=[1, 2], all_points_y=[1, 2]))
        ),
        '3 or more, got [1, 2] and [1, 2]',
    ),
    'text': (
        lambda: write(region(RECT), region(RECT | dict(x='1'))),
        "region 1 of 0.png: x, y, width, height must be numbers, got ['1', 5, 20, 20]",
    ),
    'theta': (
        lambda: write(region(ELLIPSE | dict(theta='a'))),
        "theta must be a number, got 'a'",
    ),
    'negative': (
        lambda: write(region(RECT | dict(width=-1))),
        'region 0 of 0',
    ),
    'image': (
        lambda: write(region(RECT), filename='b.png'),
        'via.json: "filename" must name one image in images, got \'b.png\', which is 0',
    ),
    'twice': (lambda: write(region(RECT), filename='1.png'), 'two entries of images/1'),
    'no-class': (
        lambda: write(region(RECT, kind='a'), region(RECT)),
        "region 1 of 0.png must have one 'kind', got {}",
    ),
    'two-classes': (
        lambda: write(region(RECT, a='x'), region(RECT, a=dict(x=True, y=True))),
        "region 1 of 0.png must have one 'a', got",
    ),
}


@pytest.mark.parametrize('case', REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant(case):
    write, message = case
    with pytest.raises(UserError) as error:
        run(write())
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
    assert not Path('data/set').exists()


def test_a_file_in_the_folder_of_each_split(capsys):
    """So are the balloons of Mask R-CNN, which mmdetection's documentation converts."""
    write(region(TRIANGLE))
    entries = json.loads(Path('via.json').read_text())
    for split, names in dict(train=IMAGES[:3], val=IMAGES[3:]).items():
        Path('all', split).mkdir(parents=True)
        for name in names:
            Path('images', name).rename(Path('all', split, name))
        document = {name: entries[f'{name}100'] for name in names}
        Path('all', split, 'via_region_data.json').write_text(json.dumps(document))
    assert format_of(Path('all')) == 'via'
    found = conversions.run('via', 'all')
    assert {name: len(each['images']) for name, each in found.items()} == dict(
        train=3, val=2
    )
    # One split may have the class alone.
    for entry in document.values():
        entry['regions'][0]['region_attributes'] = dict(kind='balloon')
    Path('all/val/via_region_data.json').write_text(json.dumps(document))
    for each in conversions.run('via', 'all').values():
        assert [c['name'] for c in each['categories']] == ['balloon']
        assert {entry['category_id'] for entry in each['annotations']} == {1}
    said = "objects without a class are taken for 'balloon', the only class"
    assert said in capsys.readouterr().err
