"""Bad data ends with one error that names the file or the key of the config."""

import json
import re
import shutil
from pathlib import Path

import pytest
from bad_data import (
    ADE_MAP,
    ADE_ROOT,
    COCO_FILE,
    COCO_IMAGE,
    DATASETS,
    IMAGENET_LIST,
    Model,
    edit_coco,
    load_all,
    train_loader,
)
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope

from mmattn.engine.data.build import build_dataset
from mmattn.engine.data.checked_dataset import DataError
from mmattn.engine.data.checks import prepare_dataloader

KEY = 'train_dataloader.dataset'


def changed(change):
    return lambda: edit_coco(change)


def first_has(**values):
    return changed(lambda x: x['annotations'][0].update(values))


no_annotation = changed(lambda x: x['annotations'].clear())
crowds_alone = changed(lambda x: [each.update(iscrowd=1) for each in x['annotations']])
twice_a_dog = changed(lambda x: x['categories'][0].update(name='dog'))
no_image = changed(lambda x: [x[key].clear() for key in ('images', 'annotations')])


@pytest.mark.parametrize(
    ('background', 'options', 'kept'),
    [
        (0, {}, [0, 1, 2, 3]),
        (0.2, {}, [0, 1, 2, 3, 4]),
        (0.5, {}, [0, 1, 2, 3, 4, 5, 7, 9]),
        (0.9, {}, range(10)),
        (0, dict(test_mode=True), range(12)),
        (0, dict(filter_cfg=None), range(12)),
        (0, dict(filter_cfg=dict(min_size=32)), range(10)),
    ],
)
def test_a_share_of_background_images_is_kept(
    tmp_path, caplog, background, options, kept
):
    """Count 12 images: 4 have an object, and the last two are too small."""
    box = dict(category_id=1, bbox=[1, 1, 9, 9], area=81, iscrowd=0)
    content = dict(
        images=[
            dict(id=i, width=side, height=side, file_name=f'{i}.jpg')
            for i, side in enumerate([40] * 10 + [20] * 2)
        ],
        annotations=[dict(box, id=i + 1, image_id=i) for i in range(4)],
        categories=[dict(id=1, name='cat')],
    )
    path = tmp_path / 'some.json'
    path.write_text(json.dumps(content))
    config = dict(type='mmattn.CocoDataset', ann_file=str(path), **metainfo('cat'))
    config |= dict(data_prefix=dict(img=''), background=background)
    config |= dict(filter_cfg=dict(filter_empty_gt=True, min_size=32))
    MMLogger.get_instance(str(tmp_path)).addHandler(caplog.handler)
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = build_dataset(config | options, KEY)
    ids = [dataset.get_data_info(i)['img_id'] for i in range(len(dataset))]
    assert ids == [*kept]
    told = f'6 of 10 images have no object, and {len(kept) - 4} of these are kept'
    assert (told in caplog.text) == (not options)


def test_a_share_of_background_images_is_below_1():
    with pytest.raises(ValueError, match='share from 0 to below 1, got 1'):
        build_dataset(dict(type='mmattn.CocoDataset', background=1), KEY)


ALL_80 = "'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more"
CLASSES = f'{KEY}.metainfo.classes'


def metainfo(*classes):
    return dict(metainfo=dict(classes=classes))


def custom(folder):
    return dict(type='CustomDataset', split=None, data_prefix=folder)


def remove(path):
    return lambda: Path(path).unlink()


def folder(path):
    return lambda: Path('imagenet', path).mkdir(parents=True)


MASKS = dict(pipeline=[dict(type='LoadAnnotations', with_bbox=True, with_mask=True)])
UNFILLED = dict(filter_cfg=dict(filter_empty_gt=True))
# By scope: change of the files, changes of the config, and the error.
CATEGORY = first_has(category_id=12)
BEFORE_TRAINING = {
    'mmdet': [
        (CATEGORY, {}, f'^{COCO_FILE}: annotation 10000 .*: has the category_id 12, w'),
        (first_has(segmentation=[]), MASKS, '10000 .* has no outline in "segmen'),
        (None, metainfo('x', 'y'), f"{CLASSES}: of 'x', 'y', none is .* has {ALL_80}"),
        (None, metainfo('cat', 'Dog'), "of 'cat', 'Dog', not 'Dog' is a category"),
        (None, dict(metainfo=dict(classes='cat')), f"{CLASSES} is the string 'cat'"),
        (twice_a_dog, metainfo('dog'), "several categories of the name 'dog'"),
        (no_annotation, {}, f'{KEY} has 4 images and no annotation of its 80 classes'),
        (crowds_alone, {}, '4 images and no annotation of its 80 classes'),
        (no_annotation, UNFILLED, f"4 with 0 .*empty_gt': True}} and .* {ALL_80}"),
        (no_image, {}, f'^{KEY}: no image of {COCO_FILE} remains, of 0 with 0'),
        (None, dict(data_root='cocoo/'), f'{KEY}.data_root: cocoo/ .*docs/datasets.md'),
        (None, dict(ann_file='x.json'), f'{KEY}.ann_file: coco/x.json does not'),
        (None, dict(data_prefix=dict(img='x')), f'{KEY}.data_prefix.img: coco/x does'),
        (remove(COCO_IMAGE), {}, f'{KEY}: {COCO_IMAGE} does not exist, of 4 images'),
        (None, dict(data_prefx={}), 'CocoDataset.: TypeError: .* unexpected keyword'),
    ],
    'mmseg': [
        (remove(ADE_MAP), {}, f'{KEY}: {ADE_MAP} does not exist, of 4 images'),
        (None, dict(img_suffix='.tif'), f"no image: .*='{ADE_ROOT}', .*fix='.tif'"),
    ],
    'mmpretrain': [
        (None, custom('x'), f'{KEY}.data_prefix: imagenet/x does not exist'),
        (folder('new/a'), custom('new'), 'CustomDataset.: RuntimeError: Found 0 files'),
        (folder('train/n0'), custom('train'), 'imagenet/train/n0 is the folder of a c'),
    ],
}


@pytest.mark.parametrize(
    ('scope', 'change', 'options', 'message'),
    [(scope, *row) for scope, rows in BEFORE_TRAINING.items() for row in rows],
)
def test_before_training(here, scope, change, options, message):
    if change is not None:
        change()
    dataset = {**DATASETS[scope], **options}
    dataset = {key: value for key, value in dataset.items() if value is not None}
    with pytest.raises(DataError, match=message):
        train_loader(dataset, scope=scope)


def test_another_order_of_classes_is_a_warning(here, monkeypatch):
    said = []
    first_has(category_id=1)()
    printing = 'mmattn.engine.data.build.print_log'
    monkeypatch.setattr(printing, lambda text, **_: said.append(text))
    train_loader(DATASETS['mmdet'] | metainfo('dog', 'person'))
    (text,) = said
    assert text.startswith(f'{KEY}.metainfo.classes has another order')


def repeated(dataset):
    return dict(type='RepeatDataset', times=2, dataset=dataset)


WRAPPERS = {
    'dataset': repeated,
    'datasets.0': lambda d: dict(type='ConcatDataset', datasets=[d, repeated(d)]),
}


@pytest.mark.parametrize(('path', 'wrap'), WRAPPERS.items(), ids=WRAPPERS)
def test_wrappers_are_looked_into(here, path, wrap):
    dataset = DATASETS['mmdet']
    assert len(load_all(wrap(dataset))) >= 4
    dataset = dataset | dict(data_prefix=dict(img='trian2017'))
    message = f'{KEY}.{path}.data_prefix.img: coco/trian2017 does not exist'
    with pytest.raises(DataError, match=f'^{re.escape(message)}$'):
        train_loader(wrap(dataset))
    first_has(category_id=12)()
    with pytest.raises(DataError, match='has the category_id 12'):
        train_loader(wrap(DATASETS['mmdet']))


# Scope, name and attributes of a head, and the error if there is one.
LABEL_999 = f'_4.JPEG has the label 999 in {IMAGENET_LIST}, but .* classes, 0 to 998'
HEADS = [
    ('mmdet', 'bbox_head', dict(num_classes=3), f'{KEY} has 80 .*bbox_head.* is 3'),
    ('mmdet', 'bbox_head', dict(num_classes=80), None),
    ('mmdet', 'mask_head', dict(num_classes=1, class_agnostic=True), None),
    ('mmdet', 'rpn_head', dict(num_classes=1), None),
    ('mmseg', 'decode_head', dict(num_classes=19, out_channels=19), '150 .* is 19'),
    ('mmseg', 'decode_head', dict(num_classes=171, out_channels=171), None),
    ('mmseg', 'auxiliary_head', dict(num_classes=2, out_channels=2), None),
    ('two', 'decode_head', dict(num_classes=1, out_channels=1), None),
    ('mmpretrain', 'head', dict(num_classes=999), LABEL_999),
    ('mmpretrain', 'head', dict(num_classes=1000), None),
]
TWO = dict(type='BaseSegDataset', **metainfo('background', 'foreground'))


@pytest.mark.parametrize(('scope', 'name', 'head', 'message'), HEADS)
def test_heads_and_data_sets_have_the_same_classes(here, scope, name, head, message):
    """One channel tells two classes apart."""
    dataset = DATASETS['mmseg'] | TWO if scope == 'two' else DATASETS[scope]
    scope = 'mmseg' if scope == 'two' else scope
    options = dict(scope=scope, model=Model(**{name: head}))
    if message is None:
        train_loader(dataset, **options)
        return
    with pytest.raises(DataError, match=message):
        train_loader(dataset, **options)


def test_a_file_elsewhere_is_not_looked_for(here):
    """An image that another backend fetches need not be a local file."""
    shutil.rmtree('coco/train2017')
    first, *rest = DATASETS['mmdet']['pipeline']
    remote = first | dict(backend_args=dict(backend='http'))
    train_loader(DATASETS['mmdet'] | dict(pipeline=[remote, *rest]))


def prepare(dataset, model=None):
    """Return a data set as validation has it."""
    with DefaultScope.overwrite_default_scope('mmdet'):
        loader = prepare_dataloader(dict(dataset=dataset), 'val_dataloader', model)
    return loader['dataset']


def test_a_subset_may_leave_out_classes(here):
    dataset = dict(type='CustomDataset', data_prefix='imagenet/train', indices=1)
    dataset['pipeline'] = DATASETS['mmpretrain']['pipeline']
    assert len(load_all(dataset, scope='mmpretrain')) == 1


def test_only_training_needs_annotations(here):
    no_annotation()
    assert len(prepare(DATASETS['mmdet'])) == 4


def test_a_negative_label_is_named(here):
    path = Path(IMAGENET_LIST)
    first, *rest = path.read_text().splitlines()
    path.write_text('\n'.join([first.split()[0] + ' -1', *rest]))
    model = Model(head=dict(num_classes=1000))
    with pytest.raises(DataError, match='has the label -1 in .*, 0 to 999'):
        train_loader(DATASETS['mmpretrain'], scope='mmpretrain', model=model)


def test_what_mm_packages_cannot_read_is_mended(here):
    """mmdet itself fails for a byte order mark, and for what is missing here."""

    def change(content):
        first, second, *others = content['annotations']
        for key in ('id', 'area', 'iscrowd'):
            del first[key]
        second['segmentation'] = second['segmentation'][0]
        for other in others:
            other['id'] = 7

    def boxes() -> list:
        found = [info['data_samples'] for info in prepare(DATASETS['mmdet'])]
        return [
            box for each in found for box in each.gt_instances.bboxes.tensor.tolist()
        ]

    good = boxes()
    edit_coco(change)
    path = Path(COCO_FILE)
    path.write_text('\ufeff' + path.read_text(), encoding='utf-8')
    assert boxes() == good and len(good) > 3


def make_panoptic():
    """A COCO file of panoptic segments, whose annotations have no category_id."""
    content = json.loads(Path(COCO_FILE).read_text())
    segments = {image['id']: [] for image in content['images']}
    for annotation in content['annotations']:
        segments[annotation['image_id']].append(annotation)
    content['annotations'] = [
        dict(image_id=image_id, file_name=f'{image_id:012}.png', segments_info=infos)
        for image_id, infos in segments.items()
    ]
    for category in content['categories']:
        category['isthing'] = 1
    Path(COCO_FILE).write_text(json.dumps(content))
    return {
        **DATASETS['mmdet'],
        'type': 'CocoPanopticDataset',
        'data_prefix': dict(img='train2017/', seg='annotations/'),
        'pipeline': [],
    }


def test_panoptic_segments_are_taken_as_they_are(here):
    """Things and stuff have a head each: 133 classes, of which 80 are boxes'."""
    heads = dict(bbox_head=dict(num_classes=80))
    dataset = prepare(make_panoptic(), model=Model(**heads))
    assert len(dataset) == 4
    assert len(dataset.metainfo['classes']) == 133
