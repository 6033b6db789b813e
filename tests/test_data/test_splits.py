"""mmattn data convert: splits of data sets as other programs write them."""

import json
from pathlib import Path

import numpy as np
import pytest
from conversions import SIZE, coco_json, convert, run, save, write
from mmengine.config import Config
from PIL import Image

from mmattn.data.recognize import format_of
from mmattn.errors import UserError

pytestmark = pytest.mark.usefixtures('empty_folder')


def yolo(root: str, folders: dict[str, str]):
    """Write an image and its text file into `FOLDER/images` or the like."""
    for folder, names in folders.items():
        for name in names.split():
            save(f'{root}/{folder}/{name}.jpg')
            labels = folder.replace('images', 'labels')
            write('0 .5 .5 .25 .5\n', f'{root}/{labels}/{name}.txt')


def roboflow_yolo():
    yolo('r', {'train/images': 'a b', 'valid/images': 'c', 'test/images': 'd'})
    splits = 'train: ../train/images\nval: ../valid/images\ntest: ../test/images\n'
    write(f'{splits}\nnc: 1\nnames: [tree]\nroboflow:\n  license: CC', 'r/data.yaml')
    return ['yolo', 'r/data.yaml']


def ultralytics():
    yolo('r', {'images/train': 'x/a b', 'images/val': 'c', 'images/more': 'e'})
    splits = 'path: ../r\ntrain: [images/train, images/more]\nval: images/val\ntest:\n'
    write(splits + 'names:\n  0: tree\n', 'r/set.yaml')
    return ['yolo', 'r']


def of_label_studio():
    """The YAML file was corrected, and its names count."""
    yolo('r/outer', {'train/images': 'a b', 'valid/images': 'c'})
    write('twig\n', 'r/outer/classes.txt')
    write('epochs: 3', 'r/outer/args.yaml')
    splits = 'train: train/images\nval: valid/images\n'
    write(splits + 'names: [tree]', 'r/outer/set.yaml')
    return ['yolo', 'r']


def of_colab():
    yolo('r', {'train/images': 'a b', 'valid/images': 'c'})
    splits = 'train: /content/drive/r/train/images\nval: C:\\r\\valid\\images\n'
    write(splits + 'names: [t]', 'r/d.yaml')
    return ['yolo', 'r']


def of_an_outer_folder():
    yolo('r', {'set/images/train': 'a b', 'set/images/val': 'c'})
    write('path: /u/r/set\ntrain: images/train\nval: images/val\nnames: [t]', 'r/d.yml')
    return ['yolo', 'r']


def cvat_ultralytics():
    yolo('r', {'images/train': 'a b', 'images/val': 'c'})
    for name, images in (('train', 'ab'), ('val', 'c')):
        lines = '\n'.join(f'data/images/{name}/{image}.jpg' for image in images)
        write(lines, f'r/{name}.txt')
    write('path: .\ntrain: train.txt\nval: val.txt\nnames: {0: tree}', 'r/data.yaml')
    return ['yolo', 'r']


def cvat_darknet():
    yolo('r', {'obj_train_data': 'a b', 'obj_valid_data': 'c'})
    write('data/obj_train_data/a.jpg\ndata/obj_train_data/b.jpg\n', 'r/train.txt')
    write('data/obj_valid_data/c.jpg\n', 'r/valid.txt')
    write('tree\n', 'r/obj.names')
    return ['yolo', 'r']


def lists_without_obj_names():
    yolo('r', {'images': 'a b c'})
    write('images/a.jpg\nimages/b.jpg\n', 'r/train.txt')
    write('images/c.jpg\n', 'r/val.txt')
    write('tree', 'r/classes.txt')
    return ['yolo', 'r']


def capitals():
    for folder, names in {'Train': 'a b', 'Valid': 'c'}.items():
        for name in names.split():
            save(f'r/{folder}/Images/{name}.jpg')
            write('0 .5 .5 .25 .5\n', f'r/{folder}/Labels/{name}.txt')
    write('train: Train/Images\nval: Valid/Images\nnames: [tree]', 'r/data.yaml')
    return ['yolo', 'r']


def folders_of_archives():
    save(*(f'r/train2017/train2017/{name}.jpg' for name in 'ab'))
    save('r/val2017/val2017/c.jpg')
    for split, names in {'train': 'a b', 'val': 'c'}.items():
        inner = 'r/annotations/annotations'
        write(coco_json(names), f'{inner}/instances_{split}2017.json')
    return ['coco', 'r']


def lists_of_another_machine():
    args, train = cvat_darknet(), '/content/data/{0}/a.jpg\nC:\\data\\{0}\\b.jpg'
    write(train.format('obj_train_data'), 'r/train.txt')
    write('/content/darknet/obj_valid_data/c.jpg', 'r/valid.txt')
    return args


def roboflow_darknet():
    yolo('r', {'train': 'a b', 'valid': 'c'})
    write('tree\n', 'r/train/_darknet.labels', 'r/valid/_darknet.labels')
    return ['yolo', 'r']


def yolo_without_names():
    yolo('r', {'train/images': 'a b', 'valid/images': 'c'})
    return ['yolo', 'r', '--classes', 'tree']


def yolo_folders():
    yolo('r', {'images/train': 'a b', 'images/val': 'c'})
    write('names: [tree]', 'names.yaml')
    return ['yolo', 'r/images', 'r/labels', '--yaml', 'names.yaml']


def saved(*folders: str):
    """Save the images of training, validation and test; yield folders and names."""
    for folder, names in zip(folders, ('a b', 'c', 'd'), strict=False):
        save(*(f'r/{folder}/{name}.jpg' for name in names.split()))
        yield folder, names


def roboflow_coco():
    for split, names in saved('train', 'valid', 'test'):
        write(coco_json(names), f'r/{split}/_annotations.coco.json')
    return ['coco', 'r']


def coco_triple():
    for split, names in saved('train2017', 'val2017', 'test2017'):
        write(coco_json(names), f'r/annotations/instances_{split}.json')
        write('{}', f'r/annotations/captions_{split}.json')
    return ['coco', 'r']


def coco_pair():
    save(*(f'r/images/{name}.jpg' for name in 'abc'))
    write(coco_json('a b'), 'r/train.json')
    write(coco_json('c'), 'r/val.json')
    return ['coco', 'r']


def named_coco():
    save(*(f'i/{name}.jpg' for name in 'ab'), 'j/c.jpg')
    write(coco_json('a b'), 'first.json')
    write(coco_json('c'), 'second.json')
    others = '--val-folder j --val-annotations second.json'.split()
    return ['coco', 'i', 'first.json', *others]


BOX = '<xmin>11</xmin><ymin>6</ymin><xmax>30</xmax><ymax>26</ymax>'
OBJECT = f'<object><name>tree</name><bndbox>{BOX}</bndbox></object>'
XML = f'<annotation>{OBJECT}</annotation>'


def voc_sets():
    save(*(f'r/VOC2012/JPEGImages/{name}.jpg' for name in 'abcde'))
    write(XML, *(f'r/VOC2012/Annotations/{name}.xml' for name in 'abcde'))
    sets = 'r/VOC2012/ImageSets/Main'
    for name, text in (('train', 'a\nb\n'), ('val', 'c.jpg'), ('test', 'd')):
        write(text, f'{sets}/{name}.txt')
    write('a 1\nb -1\n', f'{sets}/tree_train.txt')
    return ['voc', 'r']


def voc_of_tensorflow():
    save(*(f'r/images/{name}.jpg' for name in 'abc'))
    write(XML, *(f'r/annots/{name}.xml' for name in 'abc'))
    write('model {}', 'r/training/ssd.config')
    return ['voc', 'r', '--val-images', 'c*']


def write_csv(path: str, names: str):
    head = 'filename,width,height,class,xmin,ymin,xmax,ymax\n'
    rows = '\n'.join(f'{name}.jpg,64,48,tree,9,9,20,20' for name in names.split())
    write(head + rows, path)


def csv_beside_xml():
    save(*(f'r/images/{name}.jpg' for name in 'abc'))
    write(XML, *(f'r/annotations/{name}.xml' for name in 'abc'))
    write_csv('r/train_labels.csv', 'a b')
    write_csv('r/val_labels.csv', 'c')
    return ['csv', 'r']


def roboflow_voc():
    for split, names in saved('train', 'valid', 'test'):
        write(XML, *(f'r/{split}/{name}.xml' for name in names.split()))
    return ['voc', 'r']


def labelme():
    shape = dict(label='tree', shape_type='rectangle', points=([9, 9], [20, 20]))
    for split, names in saved('train', 'val'):
        for name in names.split():
            content = dict(version='5.5.0', imagePath=f'{name}.jpg', shapes=[shape])
            write(json.dumps(content), f'r/{split}/{name}.json')
    return ['labelme', 'r']


def roboflow_csv():
    for split, names in saved('train', 'valid', 'test'):
        write_csv(f'r/{split}/_annotations.csv', names)
    return ['csv', 'r']


def masks():
    mask = np.zeros(SIZE[::-1], np.uint8)
    mask[5:20, 5:20] = 3
    for folder, names in saved('train/images', 'val/images'):
        masks = Path('r', folder).with_name('masks')
        masks.mkdir()
        for name in names.split():
            Image.fromarray(mask).save(masks / f'{name}_mask.png')
    return ['masks', 'r']


TWO = dict(train=['a.jpg', 'b.jpg'], val=['c.jpg'])
OF_TWO = (
    *(of_label_studio, of_colab, of_an_outer_folder, lists_of_another_machine),
    *(csv_beside_xml, cvat_darknet, roboflow_darknet, yolo_without_names),
    *(lists_without_obj_names, capitals, folders_of_archives),
    *(yolo_folders, coco_pair, named_coco, labelme, masks),
)
OF_THREE = (
    roboflow_yolo,
    roboflow_coco,
    coco_triple,
    voc_sets,
    roboflow_voc,
    roboflow_csv,
)
LAYOUTS = {
    **dict.fromkeys(OF_TWO, TWO),
    **dict.fromkeys(OF_THREE, TWO | dict(test=['d.jpg'])),
    ultralytics: dict(train=['b.jpg', 'e.jpg', 'x/a.jpg'], val=['c.jpg']),
    cvat_ultralytics: dict(train=['train/a.jpg', 'train/b.jpg'], val=['val/c.jpg']),
}


@pytest.mark.parametrize('layout', LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_split_is_found_and_printed(layout, capsys):
    assert convert(*layout()) == LAYOUTS[layout]
    printed = capsys.readouterr()
    counts = {name: len(images) for name, images in LAYOUTS[layout].items()}
    said = f'images: {counts["train"]} for train, {counts["val"]} for val (as it comes)'
    assert said in printed.out and 'train: ' in printed.out
    assert 'share with' not in printed.err
    cfg = Config.fromfile(next(Path('data').glob('*.py')))
    split = 'test' if 'test' in counts else 'val'
    assert cfg.test_evaluator.ann_file.endswith(f'instances_{split}.json')
    assert cfg.test_dataloader.dataset.data_prefix.img == f'{split}/'
    assert cfg.metainfo.classes[0] in ('tree', 't', 'object')


def test_a_split_can_be_said_otherwise():
    args = roboflow_coco()
    found = convert(*args, '--val', '0.67')
    assert len(found['train']) == 1 and found['test'] == ['d.jpg']
    found = convert(*args, '--val-images', 'a*')
    assert found == dict(train=['b.jpg', 'c.jpg'], val=['a.jpg'], test=['d.jpg'])
    found = convert(*args, '--val', '0.25', '--test', '0.34')
    assert [len(found[name]) for name in ('train', 'val', 'test')] == [2, 1, 1]
    save('other/e.jpg')
    write(coco_json('e'), 'other/_annotations.coco.json')
    assert convert(*args, '--test-folder', 'other') == TWO | dict(test=['e.jpg'])


def test_hidden_files_are_no_data():
    args = roboflow_yolo()
    save('r/train/images/.ipynb_checkpoints/a.jpg', 'r/train/images/__MACOSX/a.jpg')
    write('?', 'r/train/labels/._a.txt')
    write('train: nowhere', 'r/._data.yaml')
    assert (
        convert(*args)['train'] == convert('yolo', 'r')['train'] == ['a.jpg', 'b.jpg']
    )


@pytest.mark.parametrize('layout', [coco_pair, labelme])
def test_a_mac_leaves_a_file_beside_each(layout):
    layout()
    for path in [*Path('r').rglob('*.json')]:
        path.with_name(f'._{path.name}').write_text('?')
    found = format_of(Path('r'))
    assert found == layout.__name__.partition('_')[0]
    assert convert(found, 'r') == TWO


def test_images_that_no_annotations_list_are_counted(capsys):
    assert convert(*csv_beside_xml()) == TWO  # each file lists some of the folder
    assert 'list' not in capsys.readouterr().err
    save('r/images/d.jpg')
    write(coco_json('a b c'), 'r/a.json')
    convert('coco', 'r')
    said = "1 images of r/images that no annotations list, such as 'd.jpg', are left"
    assert said in capsys.readouterr().err


def test_a_folder_without_images_is_no_split():
    assert convert(*voc_of_tensorflow()) == TWO


def test_a_validation_that_is_training_is_drawn(capsys):
    yolo('r', {'images/train': 'a b c d e'})
    write('train: images/train\nval: images/train\nnames: [t]', 'r/coco8.yaml')
    found = convert('yolo', 'r/coco8.yaml')
    assert len(found['val']) == 1 and len(found['train']) == 4
    assert 'val is train again' in capsys.readouterr().err


def two_files():
    write(coco_json('a'), 'r/train_2.json')
    return coco_pair()


def unusual_folder():
    args = voc_of_tensorflow()
    Path('r/annots').rename('r/boxes')
    return args


REFUSED = {
    'two files': (two_files, 'r/val.json', '2 files may have the split train: r/train'),
    'no train': (roboflow_yolo, 'r/train/images', 'names what is not there, train: '),
    'a list of nothing': (cvat_ultralytics, 'r/images/val/c.jpg', 'must list images'),
    'listed': (voc_sets, 'r/VOC2012/JPEGImages/c.jpg', "missing, such as 'c'"),
    'no xml': (unusual_folder, 'r/training', 'pass a folder of XML files after that'),
    'no mask': (masks, 'r/val/masks/c_mask.png', 'has no image'),
}


@pytest.mark.parametrize('case', REFUSED.values(), ids=REFUSED)
def test_what_is_missing_is_named(case):
    layout, path, message = case
    args = layout()
    Path(path).rename('gone')
    with pytest.raises(UserError, match=message):
        run(*args)
    assert not Path('data').exists()
