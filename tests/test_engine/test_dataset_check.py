"""Bad data ends with one error that names the file or the key of the config."""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

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

from mmattn.engine.data.checked_dataset import DataError

KEY = 'train_dataloader.dataset'


@pytest.mark.parametrize('scope', DATASETS)
@pytest.mark.parametrize('num_workers', [0, 2], ids=['here', 'workers'])
def test_good_data_passes(here, scope, num_workers):
    assert len(load_all(DATASETS[scope], scope=scope, num_workers=num_workers)) == 4


def first_has(**values):
    return lambda: edit_coco(lambda content: content['annotations'][0].update(values))


def no_annotation():
    edit_coco(lambda content: content['annotations'].clear())


def twice_a_dog():
    edit_coco(lambda content: content['categories'][0].update(name='dog'))


def no_image():
    edit_coco(lambda content: [content[k].clear() for k in ('images', 'annotations')])


SEG_PREFIX = DATASETS['mmseg']['data_prefix']
ALL_80 = "'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more"
BEFORE_TRAINING = {
    'unknown category': (
        'mmdet',
        first_has(category_id=12),
        {},
        f'{COCO_FILE}: annotation 10000 (image_id 1000) has the category_id 12, which '
        '"categories" does not list',
    ),
    'unknown image': (
        'mmdet',
        first_has(image_id=5),
        {},
        f'{COCO_FILE}: annotation 10000 has the image_id 5, which "images" does not '
        'list',
    ),
    'no class matches': (
        'mmdet',
        None,
        dict(metainfo=dict(classes=('nucleus', 'cell'))),
        f"{KEY}.metainfo.classes: of 'nucleus', 'cell', none is a category of "
        f'{COCO_FILE}, which has {ALL_80}',
    ),
    'a class does not match': (
        'mmdet',
        None,
        dict(metainfo=dict(classes=('cat', 'Dog'))),
        f"{KEY}.metainfo.classes: of 'cat', 'Dog', not 'Dog' is a category of "
        f'{COCO_FILE}, which has {ALL_80}',
    ),
    'classes without a comma': (
        'mmdet',
        None,
        dict(metainfo=dict(classes=('cat'))),
        f"{KEY}.metainfo.classes is the string 'cat'; of one class: ('cat',)",
    ),
    'a category twice': (
        'mmdet',
        twice_a_dog,
        dict(metainfo=dict(classes=('dog', 'cat'))),
        f"{COCO_FILE} has several categories of the name 'dog'",
    ),
    'no annotation': (
        'mmdet',
        no_annotation,
        {},
        f'{KEY} has 4 images and no annotation of its 80 classes',
    ),
    'no annotation, images filtered': (
        'mmdet',
        no_annotation,
        dict(filter_cfg=dict(filter_empty_gt=True)),
        f'{KEY}: no image of {COCO_FILE} remains, of 4 with 0 annotations, by '
        f"filter_cfg={{'filter_empty_gt': True}} and the classes {ALL_80}",
    ),
    'no image': (
        'mmdet',
        no_image,
        {},
        f'{KEY}: no image of {COCO_FILE} remains, of 0 with 0 annotations, by '
        f'filter_cfg=None and the classes {ALL_80}',
    ),
    'no data root': (
        'mmdet',
        None,
        dict(data_root='cocoo/'),
        f'{KEY}.data_root: cocoo/ does not exist; docs/datasets.md says how to get and '
        'lay out data sets',
    ),
    'no annotation file': (
        'mmdet',
        None,
        dict(ann_file='annotations/train.json'),
        f'{KEY}.ann_file: coco/annotations/train.json does not exist',
    ),
    'no image folder': (
        'mmdet',
        None,
        dict(data_prefix=dict(img='trian2017')),
        f'{KEY}.data_prefix.img: coco/trian2017 does not exist',
    ),
    'an image is missing': (
        'mmdet',
        lambda: Path(COCO_IMAGE).unlink(),
        {},
        f'{KEY}: {COCO_IMAGE} does not exist, of 4 images',
    ),
    'a misspelt argument': (
        'mmdet',
        None,
        dict(data_prefx={}),
        f'{KEY} (CocoDataset): TypeError: BaseDataset.__init__() got an unexpected '
        "keyword argument 'data_prefx'",
    ),
    'no image folder of segmentation': (
        'mmseg',
        None,
        dict(data_prefix={**SEG_PREFIX, 'img_path': 'images/train'}),
        f'{KEY}.data_prefix.img_path: {ADE_ROOT}/images/train does not exist',
    ),
    'no label folder': (
        'mmseg',
        None,
        dict(data_prefix={**SEG_PREFIX, 'seg_map_path': 'annotation'}),
        f'{KEY}.data_prefix.seg_map_path: {ADE_ROOT}/annotation does not exist',
    ),
    'a label map is missing': (
        'mmseg',
        lambda: Path(ADE_MAP).unlink(),
        {},
        f'{KEY}: {ADE_MAP} does not exist, of 4 images',
    ),
    'no file with this suffix': (
        'mmseg',
        None,
        dict(img_suffix='.tif'),
        f"{KEY} (ADE20KDataset) has no image: data_root='{ADE_ROOT}', "
        f"data_prefix={SEG_PREFIX}, img_suffix='.tif'",
    ),
    'no class folder': (
        'mmpretrain',
        None,
        dict(type='CustomDataset', split=None, data_prefix='trian'),
        f'{KEY}.data_prefix: imagenet/trian does not exist',
    ),
    'empty class folders': (
        'mmpretrain',
        lambda: Path('imagenet/new/a').mkdir(parents=True),
        dict(type='CustomDataset', split=None, data_prefix='new'),
        f'{KEY} (CustomDataset): RuntimeError: Found 0 files in subfolders of: '
        "{'img_path': 'imagenet/new'}",
    ),
    'an empty class folder': (
        'mmpretrain',
        lambda: Path('imagenet/train/n0').mkdir(parents=True),
        dict(type='CustomDataset', split=None, data_prefix='train'),
        f'{KEY}: imagenet/train/n0 is the folder of a class, but has no image',
    ),
}


@pytest.mark.parametrize(
    ('scope', 'change', 'options', 'message'),
    BEFORE_TRAINING.values(),
    ids=BEFORE_TRAINING,
)
def test_before_training(here, scope, change, options, message):
    if change is not None:
        change()
    dataset = {**DATASETS[scope], **options}
    dataset = {key: value for key, value in dataset.items() if value is not None}
    with pytest.raises(DataError) as raised:
        train_loader(dataset, scope=scope)
    assert str(raised.value).startswith(message)


def test_a_file_may_have_more_categories_than_the_classes(here):
    dataset = {**DATASETS['mmdet'], 'metainfo': dict(classes=('cat',))}
    edit_coco(lambda c: [a.update(category_id=17) for a in c['annotations'][:2]])
    assert len(load_all(dataset)) == 4


def test_boxes_that_mmdet_drops_are_no_error(here):
    set_box = first_has(bbox=[-50.0, -50.0, 10.0, 10.0], area=0)
    set_box()
    assert len(load_all(DATASETS['mmdet'])) == 4


def test_another_order_of_classes_is_a_warning(here, monkeypatch):
    said = []
    first_has(category_id=1)()
    monkeypatch.setattr(
        'mmattn.engine.data.build.print_log', lambda text, **_: said.append(text)
    )
    train_loader({**DATASETS['mmdet'], 'metainfo': dict(classes=('dog', 'person'))})
    (text,) = said
    assert text.startswith(f'{KEY}.metainfo.classes has another order')


def repeated(dataset):
    return dict(type='RepeatDataset', times=2, dataset=dataset)


WRAPPERS = {
    'repeat': (repeated, 'dataset'),
    'concat': (
        lambda d: dict(type='ConcatDataset', datasets=[d, repeated(d)]),
        'datasets.0',
    ),
    'balanced': (
        lambda d: dict(type='ClassBalancedDataset', oversample_thr=1e-3, dataset=d),
        'dataset',
    ),
    'mixed': (
        lambda d: dict(type='MultiImageMixDataset', dataset=d, pipeline=[]),
        'dataset',
    ),
}


@pytest.mark.parametrize(('wrap', 'path'), WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_are_looked_into(here, wrap, path):
    dataset = DATASETS['mmdet']
    assert len(load_all(wrap(dataset))) >= 4
    dataset = {**dataset, 'data_prefix': dict(img='trian2017')}
    message = f'{KEY}.{path}.data_prefix.img: coco/trian2017 does not exist'
    with pytest.raises(DataError, match=f'^{re.escape(message)}$'):
        train_loader(wrap(dataset))
    first_has(category_id=12)()
    with pytest.raises(DataError, match='has the category_id 12'):
        train_loader(wrap(DATASETS['mmdet']))


def attributes(**values):
    return values


HEADS = {
    'detector, more': (
        'mmdet',
        dict(bbox_head=attributes(num_classes=3)),
        f'{KEY} has 80 classes, but model.bbox_head.num_classes is 3',
    ),
    'detector, the same': ('mmdet', dict(bbox_head=attributes(num_classes=80)), None),
    'class agnostic masks': (
        'mmdet',
        dict(mask_head=attributes(num_classes=1, class_agnostic=True)),
        None,
    ),
    'region proposals': ('mmdet', dict(rpn_head=attributes(num_classes=1)), None),
    'segmentor, too few': (
        'mmseg',
        dict(decode_head=attributes(num_classes=19, out_channels=19)),
        f'{KEY} has 150 classes, but model.decode_head.num_classes is 19',
    ),
    'segmentor, more': (
        'mmseg',
        dict(decode_head=attributes(num_classes=171, out_channels=171)),
        None,
    ),
    'boundary in an auxiliary head': (
        'mmseg',
        dict(auxiliary_head=attributes(num_classes=2, out_channels=2)),
        None,
    ),
    'classifier, too few': (
        'mmpretrain',
        dict(head=attributes(num_classes=999)),
        'imagenet/train/n15075141/n15075141_4.JPEG has the label 999 in '
        f'{IMAGENET_LIST}, but there are 999 classes, 0 to 998',
    ),
    'classifier, enough': ('mmpretrain', dict(head=attributes(num_classes=1000)), None),
}


@pytest.mark.parametrize(('scope', 'heads', 'message'), HEADS.values(), ids=HEADS)
def test_heads_and_data_sets_have_the_same_classes(here, scope, heads, message):
    if message is None:
        train_loader(DATASETS[scope], scope=scope, model=Model(**heads))
        return
    with pytest.raises(DataError, match=f'^{re.escape(message)}$'):
        train_loader(DATASETS[scope], scope=scope, model=Model(**heads))


def test_one_channel_tells_two_classes_apart(here):
    heads = dict(decode_head=attributes(num_classes=1, out_channels=1))
    dataset = {
        **DATASETS['mmseg'],
        'type': 'BaseSegDataset',
        'metainfo': dict(classes=('background', 'foreground')),
    }
    train_loader(dataset, scope='mmseg', model=Model(**heads))


def test_a_file_elsewhere_is_not_looked_for(here):
    """An image that another backend fetches need not be a local file."""
    shutil.rmtree('coco/train2017')
    first, *rest = DATASETS['mmdet']['pipeline']
    remote = {**first, 'backend_args': dict(backend='http')}
    train_loader({**DATASETS['mmdet'], 'pipeline': [remote, *rest]})


def test_validation_sets_are_checked_under_their_key(here):
    from mmengine.runner import ValLoop

    from mmattn.engine import Runner

    runner = Runner(
        Model(),
        work_dir='run',
        default_scope='mmseg',
        val_dataloader=dict(
            dataset={**DATASETS['mmseg'], 'data_root': 'nowhere'},
            sampler=dict(type='DefaultSampler', shuffle=False),
        ),
        val_cfg=dict(type=ValLoop),
        val_evaluator=dict(type='IoUMetric'),
        experiment_name='bad_validation',
        log_level='ERROR',
    )
    with pytest.raises(DataError, match='^val_dataloader.dataset.data_root: nowhere'):
        runner.val()
