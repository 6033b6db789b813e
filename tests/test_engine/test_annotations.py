"""The annotations that are counted, checked or left alone before a run."""

import json
from pathlib import Path

import pytest

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from bad_data import COCO_FILE, DATASETS, IMAGENET_LIST, Model, edit_coco, train_loader
from mmengine.registry import DefaultScope

from mmattn.engine.data.checked_dataset import DataError
from mmattn.engine.data.checks import prepare_dataloader


def prepare(dataset, key='val_dataloader', model=None):
    with DefaultScope.overwrite_default_scope('mmdet'):
        return prepare_dataloader(dict(dataset=dataset), key, model)['dataset']


def no_annotation(content):
    content['annotations'].clear()


def crowds_alone(content):
    for annotation in content['annotations']:
        annotation['iscrowd'] = 1


@pytest.mark.parametrize('change', [no_annotation, crowds_alone])
def test_only_training_needs_annotations_of_objects(here, change):
    edit_coco(change)
    assert len(prepare(DATASETS['mmdet'])) == 4
    with pytest.raises(DataError, match='4 images and no annotation of its 80 classes'):
        prepare(DATASETS['mmdet'], 'train_dataloader')


def test_a_negative_label_is_named(here):
    path = Path(IMAGENET_LIST)
    first, *rest = path.read_text().splitlines()
    path.write_text('\n'.join([first.split()[0] + ' -1', *rest]))
    heads = dict(head=dict(num_classes=1000))
    with pytest.raises(DataError, match='has the label -1 in .*, 0 to 999'):
        train_loader(DATASETS['mmpretrain'], scope='mmpretrain', model=Model(**heads))


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
