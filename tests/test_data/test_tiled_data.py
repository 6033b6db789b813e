"""mmattn data convert: tiles, classes and CSV files, with values counted by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from conversions import run
from mmdet.registry import DATASETS
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image
from pycocotools import mask as coco_mask

from mmattn.data import own_config
from mmattn.errors import UserError

pytest.importorskip('sahi')


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Two images of 100 x 180 pixels whose pixels are all different in a row."""
    monkeypatch.chdir(tmp_path)
    Path('images').mkdir()
    for name in 'ab':
        y, x = np.mgrid[:100, :180].astype(np.uint8)
        pixels = np.stack([x, y, np.full_like(x, ord(name))], -1)
        Image.fromarray(pixels).save(f'images/{name}.png')


def coco(boxes: list[list[float]], outlines=(), crowd=None) -> list[str]:
    """Write the same objects for both images; the last one is of another class."""
    annotations = []
    for image in (1, 2):
        for number, box in enumerate(boxes):
            entry = dict(id=len(annotations), image_id=image, bbox=box)
            entry['category_id'] = 2 if number == len(boxes) - 1 else 1
            entry['iscrowd'] = int(number == crowd)
            if outlines:
                entry['segmentation'] = outlines[number]
            annotations.append(entry)
    images = [
        dict(id=i, file_name=f'{name}.png', width=180, height=100)
        for i, name in enumerate('ab', 1)
    ]
    categories = [dict(id=1, name='alive'), dict(id=2, name='dead')]
    content = dict(images=images, annotations=annotations, categories=categories)
    Path('a.json').write_text(json.dumps(content))
    return ['coco', 'images', 'a.json', '--val-images', 'b*']


# Tiles of 100 begin at 0 and 80. The first box is whole in both, the second is cut at
# 100 and whole in the second, of the third 5 of 30 columns are in the first.
BOXES = [[82, 10, 10, 20], [90, 40, 20, 20], [95, 70, 30, 10]]
POLYGONS = [[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in BOXES]
MANY = [[i % 30 * 6, i // 30 * 6, 5, 5] for i in range(400)]


def tile_of(document: dict, name: str) -> list[dict]:
    numbers = {image['file_name']: image['id'] for image in document['images']}
    return [a for a in document['annotations'] if a['image_id'] == numbers[name]]


@pytest.mark.parametrize('kind', ['--boxes', '--masks'])
def test_objects_in_tiles(kind):
    args = coco(BOXES, POLYGONS)
    written = run(*args, kind, '--tile', '100', '--overlap', '0.2')
    assert sorted(written) == ['train', 'val', 'val_whole']
    names = [image['file_name'] for image in written['train']['images']]
    assert names == ['a_0_0.png', 'a_80_0.png']
    left, right = (tile_of(written['train'], name) for name in names)
    found = [[a['bbox'] for a in entries] for entries in (left, right)]
    assert found[0] == [[82, 10, 10, 20], [90, 40, 10, 20], [95, 70, 5, 10]]
    assert found[1] == [[2, 10, 10, 20], [10, 40, 20, 20], [15, 70, 30, 10]]
    assert [a['iscrowd'] for a in left] == [0, 0, 1]  # a sixth of it is visible
    assert [a['area'] for a in left] == [200, 200, 50]
    assert [a['category_id'] for a in right] == [1, 1, 2]
    if kind == '--masks':
        mask = coco_mask.decode(left[1]['segmentation'])
        expected = np.zeros((100, 100))
        expected[40:60, 90:] = 1
        np.testing.assert_array_equal(mask, expected)
        assert right[0]['segmentation'] == [[2, 10, 12, 10, 12, 30, 2, 30]]
    pixels = np.asarray(Image.open('data/set/val/b_80_0.png'))
    whole = np.asarray(Image.open('images/b.png'))
    np.testing.assert_array_equal(pixels, whole[:, 80:])
    assert [a['bbox'] for a in written['val_whole']['annotations']] == BOXES
    cfg = Config.fromfile(next(Path('data').glob('*.py')))
    assert (cfg.tile, cfg.overlap) == (100, 0.2)
    assert cfg.test_dataloader.dataset.data_prefix.img == 'val_whole/'
    assert cfg.val_dataloader.dataset.data_prefix.img == 'val/'


def test_polygons_stay_polygons():
    """Their masks in a crop are those of mmdet's bitmaps, up to a pixel at the edge."""
    run(*coco(BOXES, POLYGONS), '--masks')
    cfg = Config.fromfile('data/mask_rcnn_ivit_n_set.py')
    init_default_scope('mmdet')
    dataset = cfg.train_dataloader.dataset
    dataset.pipeline[3].crop_size = (90, 90)  # one that cuts
    areas = []
    for polygons in (True, False):
        assert dataset.pipeline[1].get('poly2mask', True) is not polygons
        np.random.seed(1)
        masks = DATASETS.build(dataset)[0]['data_samples'].gt_instances.masks
        assert isinstance(masks, PolygonMasks if polygons else BitmapMasks)
        areas.append(masks.areas)
        dataset.pipeline[1].poly2mask = True
    np.testing.assert_allclose(areas[0], areas[1], rtol=0.2)
    path = Path('data/mask_rcnn_ivit_n_set.py')
    path.unlink()
    run(*coco(BOXES, POLYGONS), '--masks', '--tile', '100')  # run lengths where cut
    assert 'poly2mask' not in path.read_text()
    crowd = dict(size=[100, 180], counts=[0, 9, 17991])
    path.unlink()
    run(*coco(BOXES, [*POLYGONS[:2], crowd], crowd=2), '--masks')  # not for training
    assert 'poly2mask' in path.read_text()


def test_parts_of_masks_are_those_of_the_image():
    """A disc as run lengths and as a polygon, in tiles that cut it both ways."""
    y, x = np.mgrid[:100, :180]
    disc = (x - 70) ** 2 + (y - 50) ** 2 < 30**2
    whole = coco_mask.encode(np.asfortranarray(disc, np.uint8))
    whole['counts'] = whole['counts'].decode()
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    circle = np.stack([70 + 30 * np.cos(angles), 50 + 30 * np.sin(angles)], 1)
    outlines = [whole, [circle.ravel().tolist()]]
    args = [*coco([[40, 20, 60, 60]] * 2, outlines), '--tile', '60']
    written = run(*args, '--empty-tiles', '1')['train']
    assert len(written['images']) == 2 * 4
    masks = [disc, coco_mask.decode(coco_mask.frPyObjects(outlines[1], 100, 180))]
    for image in written['images']:
        left, top = map(int, image['file_name'][:-4].split('_')[1:])
        window = np.s_[top : top + 60, left : left + 60]
        parts = [np.squeeze(mask)[window] for mask in masks]
        entries = tile_of(written, image['file_name'])
        for entry, part in zip(entries, [p for p in parts if p.any()], strict=True):
            np.testing.assert_array_equal(coco_mask.decode(entry['segmentation']), part)
            assert entry['iscrowd'] == (part.sum() < 0.3 * disc.sum())


def test_images_of_tests_stay_whole():
    args = coco(BOXES)
    content = json.loads(Path('a.json').read_text())
    Path('more').mkdir()
    Path('images/b.png').rename('more/b.png')
    tested = content | dict(images=content['images'][1:])
    tested['annotations'] = content['annotations'][3:]
    Path('b.json').write_text(json.dumps(tested))
    Image.new('RGB', (180, 100)).save('images/c.png')
    content['images'][1]['file_name'] = 'c.png'
    Path('a.json').write_text(json.dumps(content))
    others = ['--test-folder', 'more', '--test-annotations', 'b.json']
    written = run(*args[:3], *others, '--val-images', 'c*', '--tile', '100')
    counts = {name: len(each['images']) for name, each in written.items()}
    assert counts == dict(train=2, val=2, test=1)
    assert [a['bbox'] for a in written['test']['annotations']] == BOXES
    cfg = Config.fromfile('data/faster_rcnn_ivit_n_set.py')
    assert cfg.test_dataloader.dataset.data_prefix.img == 'test/'


def test_crowds_stay_crowds_where_a_class_is_left_out():
    args = coco(BOXES, crowd=2)
    (entry,) = run(*args, '--classes', 'dead')['val']['annotations']
    assert entry['iscrowd'] == 1


def test_options_of_tiles():
    args = [*coco(BOXES), '--tile', '100']
    found = run(*args, '--min-visible', '0.1')['train']['annotations']
    assert [a['iscrowd'] for a in found] == [0] * 6
    few = coco([[120, 10, 10, 20]] * 2)
    assert len(run(*few, '--tile', '50', '--empty-tiles', '0')['train']['images']) == 2
    assert len(run(*few, '--tile', '50', '--empty-tiles', '1')['train']['images']) == 15
    half = run(*few, '--tile', '50', '--empty-tiles', '0.5')
    assert len(half['train']['images']) == 2 + 6  # of 13 that are empty
    assert len(half['val']['images']) == 15
    for option, value in (('--tile', '0'), ('--overlap', '1'), ('--min-visible', '2')):
        with pytest.raises(UserError, match=option.strip('-').split('-')[-1]):
            run(*few, *('--tile', '50'), option, value)


def test_label_maps_in_tiles():
    Path('maps').mkdir()
    for name in 'ab':
        mask = np.zeros((100, 180), np.uint8)
        mask[:, 90:], mask[:10] = 1, 2
        Image.fromarray(mask).save(f'maps/{name}.png')
    args = ['labels', 'images', 'maps', '--classes', 'sky', 'road', 'tree']
    args += ['--merge', 'green=road,tree', '--val-images', 'b*', '--tile', '100']
    run(*args, '--factor', '0.5')
    labels = np.asarray(Image.open('data/set/labels/train/a_80_0.png'))
    assert labels.shape == (100, 100) and set(np.unique(labels)) == {0, 1}
    assert labels[50, 9] == 0 and labels[50, 10] == 1 and labels[5, 5] == 1
    assert Image.open('data/set/labels/val_whole/b.png').size == (180, 100)
    cfg = Config.fromfile('data/upernet_ivit_n_set.py')
    assert cfg.metainfo.classes == ('sky', 'green') and cfg.factor == 0.5
    steps = [step.type for step in cfg.train_pipeline]
    assert steps[1:4] == ['LoadAnnotations', 'RandomChoice', 'RandomCrop']
    assert cfg.train_pipeline[2].transforms[1][0].scale_factor == 0.5
    assert cfg.train_dataloader.dataset.pipeline == cfg.train_pipeline
    assert cfg.test_dataloader.dataset.pipeline == cfg.test_pipeline
    assert 'landcover' not in cfg.pretty_text


@pytest.mark.parametrize(
    'name, text',
    [
        ('_classes.csv', 'Pixel Value, Class\na, sky'),
        ('_classes.csv', 'Pixel Value, Class\n300, sky'),
        ('class_dict.csv', 'name,r,g,b\nsky,0,0'),
        ('labelmap.txt', 'sky\n'),
        ('labelmap.txt', b'\xff\xfe\xff'),
    ],
    ids=['text', 'number', 'color', 'columns', 'bytes'],
)
def test_a_damaged_legend_is_named(name, text):
    Path('maps').mkdir()
    for image in 'ab':
        Image.new('L', (180, 100)).save(f'maps/{image}.png')
    text = text if isinstance(text, bytes) else text.encode()
    Path('maps', name).write_bytes(text)
    with pytest.raises(UserError, match=f'maps/{name} must have a number or a color'):
        run('labels', 'images', 'maps')


MERGE = ['--merge', 'tree=alive,dead']
CLASSES = {
    'chosen': (['--classes', 'dead'], ['dead'], [1]),
    'in another order': (['--classes', 'dead', 'alive'], ['dead', 'alive'], [2, 2, 1]),
    'renamed': (['--classes', 'oak', 'log'], ['oak', 'log'], [1, 1, 2]),
    'merged': (MERGE, ['tree'], [1, 1, 1]),
    'merged and renamed': ([*MERGE, '--classes', 'oak'], ['oak'], [1, 1, 1]),
}


@pytest.mark.parametrize('case', CLASSES.values(), ids=CLASSES)
def test_classes(case):
    args, names, labels = case
    document = run(*coco(BOXES), *args)['val']
    assert [c['name'] for c in document['categories']] == names
    assert [a['category_id'] for a in document['annotations']] == labels


@pytest.mark.parametrize(
    'args, message',
    [
        (['--merge', 'alive,dead'], '--merge must be such as'),
        (['--merge', 'tree=alive,lost'], 'names lost, but the classes are alive, dead'),
        (['--classes', 'dead', 'lost', 'x'], 'must name some of the classes'),
        (['--classes', 'x', 'x'], 'the names of classes must differ'),
        (['--ignore', '3'], '--ignore is for label maps'),
        (['--factor', '0'], '--factor must be above 0'),
        (['--test', '1'], '--test must be between 0 and 1'),
    ],
    ids=['merge', 'lost', 'classes', 'twice', 'ignore', 'factor', 'test'],
)
def test_options_that_cannot_be_meant(args, message):
    with pytest.raises(UserError, match=message):
        run(*coco(BOXES), *args)
    assert not Path('data/set').exists() or 'factor' in message


HEAD = 'filename,xmin,ymin,xmax,ymax\n'
CSV = {
    'tensorflow': 'filename,width,height,class,xmin,ymin,xmax,ymax\n'
    'a.png,180,100,tree,10,20,30,50\nb.png,180,100,,,,,\n',
    'deepforest': 'image_path,xmin,ymin,xmax,ymax,label\na.png,10,20,30,50,tree\n'
    'b.png,1,2,1,2,tree\n',
    'wheat': 'image_id,width,height,bbox,source\na,180,100,"[10.0, 20, 20, 30]",x\n'
    'b,180,100,,y',
    'retinanet': 'images/a.png,10,20,30,50,tree\nimages/b.png,,,,,\n',
    'semicolons': 'img;xmin;ymin;xmax;ymax;labels\na.png;10;20;30;50;tree\nb.png;;;;;',
    'name': 'name,x1,x2,y1,y2,classname\na.png,10,30,20,50,tree\nb.png,,,,,',
    'width': 'image_name,x,y,width,height,class_id\na,10,20,20,30,tree\nb,,,,,',
    'sides': '\ufeffImage;X;Y;W;H\n'.replace(';', ',') + 'a.png,10,20,20,30\nb.png,,,,',
}


@pytest.mark.parametrize('text', CSV.values(), ids=CSV)
def test_csv(text):
    Path('boxes.csv').write_text(text)
    written = run('csv', 'images', 'boxes.csv', '--val-images', 'b*')
    assert [a['bbox'] for a in written['train']['annotations']] == [[10, 20, 20, 30]]
    assert written['val']['annotations'] == []
    name = 'object' if 'bbox' in text or 'Image' in text else 'tree'
    assert [c['name'] for c in written['train']['categories']] == [name]


def test_csv_without_a_known_column_of_classes(capsys):
    Path('boxes.csv').write_text('image,x1,y1,x2,y2,species\na,1,2,30,40,oak\nb,,,,,')
    run('csv', 'images', 'boxes.csv')
    assert 'boxes.csv has no column of classes, such as' in capsys.readouterr().err


def test_csv_names_files_with_their_suffix():
    """Other files of the name are no matter; DeepForest has both of one image."""
    for name in 'ab':
        Image.open(f'images/{name}.png').save(f'images/{name}.tif')
    Path('boxes.csv').write_text(HEAD + 'a.tif,1,2,30,40\nb.png,1,2,30,40\n')
    written = run('csv', 'images', 'boxes.csv', '--val-images', 'b*')
    assert written['train']['images'][0]['file_name'] == 'a.tif'
    Path('boxes.csv').write_text(HEAD + 'a,1,2,30,40\n')
    with pytest.raises(UserError, match='line 2 must name one image .* which is 2'):
        run('csv', 'images', 'boxes.csv')


def test_tiles_of_compressed_tiff_files():
    """LZW is what GDAL, DeepForest and many microscopes write."""
    for name in 'ab':
        image = Image.open(f'images/{name}.png')
        image.save(f'images/{name}.tif', compression='tiff_lzw')
        Path(f'images/{name}.png').unlink()
    Path('boxes.csv').write_text(HEAD + 'a.tif,1,2,30,40\nb.tif,1,2,9,9')
    args = ['csv', 'images', 'boxes.csv', '--tile', '100', '--val-images']
    run(*args, 'b*')
    whole = np.asarray(Image.open('images/b.tif'))
    np.testing.assert_array_equal(Image.open('data/set/val/b_80_0.tif'), whole[:, 80:])
    Image.fromarray(new := 255 - whole).save('images/b.tif')
    run(*args, 'a*')  # reads the changed image
    np.testing.assert_array_equal(Image.open('data/set/train/b_0_0.tif'), new[:, :100])


@pytest.mark.parametrize(
    'text, message',
    [
        ('a,b\n1,2', 'boxes.csv must have columns of the image and of its box'),
        (f'{HEAD}a.png,1,2,x,4', 'line 2 must have four numbers'),
        (f'{HEAD}c.png,1,2,3,4', "one image in images, got 'c"),
        (f'{HEAD}a.png,9,2,3,4', 'line 2: has a negative width'),
        ('filename,bbox\na.png,"[1, 2, 3]"', 'line 2 must have four numbers'),
        ('', 'must have columns'),
    ],
    ids=['columns', 'text', 'image', 'turned', 'three', 'empty'],
)
def test_csv_that_cannot_be_meant(text, message):
    Path('boxes.csv').write_text(text)
    with pytest.raises(UserError, match=message):
        run('csv', 'images', 'boxes.csv')


@pytest.mark.parametrize('tile', [(), ('--tile', '60')], ids=['whole', 'tiles'])
def test_limits_follow_the_largest_count_of_whole_images(tile):
    """Users predict on whole images; the file lists all objects of a and one of b."""
    args = coco(MANY)
    content = json.loads(Path('a.json').read_text())
    content['annotations'] = content['annotations'][:401]
    Path('a.json').write_text(json.dumps(content))
    run(*args, *tile)
    model = Config.fromfile('data/faster_rcnn_ivit_n_set.py').model
    assert model.test_cfg.rcnn.max_per_img == 800
    assert model.test_cfg.rpn.nms_pre == model.test_cfg.rpn.max_per_img == 1600
    assert (model.train_cfg.rpn_proposal.max_per_img < 800) == bool(tile)


def test_small_objects_are_not_shrunk(monkeypatch, capsys):
    monkeypatch.setattr(own_config, 'SHORT', 50)
    run(*coco(BOXES))
    err = capsys.readouterr().err
    assert 'sides of 15 to 19 pixels' in err and '--factor 2 enlarges them' in err
    path = Path('data/faster_rcnn_ivit_n_set.py')
    assert Config.fromfile(path).factor == 1
    path.unlink()
    run(*coco([[10, 10, 60, 60]] * 2))
    assert Config.fromfile(path).factor == 0.5
    assert 'small' not in capsys.readouterr().err
