"""Folders of images and label maps, as people lay them out."""

from pathlib import Path

import pytest
from conversions import SIZE, save
from PIL import Image

from mmattn.data.layouts import find_parts
from mmattn.data.layouts.names import image_splits
from mmattn.data.layouts.parts import beside
from mmattn.data.recognize import format_of

pytestmark = pytest.mark.usefixtures('empty_folder')

LAYOUTS = {  # folders of images and of maps, to train and to validate or test
    "mmsegmentation's": ('img_dir/train ann_dir/train', 'img_dir/val ann_dir/val'),
    "keras-segmentation's": (
        'images_prepped_train annotations_prepped_train',
        'images_prepped_test annotations_prepped_test',
    ),
    "nnU-Net's": ('imagesTr labelsTr', 'imagesTs labelsTs'),
    'splits after': ('images_train labels_train', 'images_val labels_val'),
    'splits before': ('train_images train_masks', 'val_images val_masks'),
    'splits joined': ('train trainannot', 'val valannot'),
    # As in the data of mmsegmentation's own tests.
    "LIP's": ('train_images train_segmentations', 'val_images val_segmentations'),
    'other names': ('Train/Original Train/GT', 'Val/Original Val/GT'),
}


def save_maps(*names: str):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new('L', SIZE, 1).save(name)


@pytest.mark.parametrize('pairs', LAYOUTS.values(), ids=LAYOUTS)
def test_each_split_has_its_maps(pairs):
    for pair in pairs:
        images, maps = pair.split()
        save(f'set/{images}/a.png', f'set/{images}/b.png')
        save_maps(f'set/{maps}/a.png', f'set/{maps}/b.png')
    assert format_of(Path('set')) in ('labels', 'masks')
    found = find_parts('labels', Path('set'))
    assert len(found) == 2 and 'train' in found
    for (part,), pair in zip(found.values(), pairs, strict=True):
        images, maps = (Path('set', name) for name in pair.split())
        assert part.images in (images, images.parent) and part.annotations == maps


def test_a_plain_name_of_a_split_counts_before_a_longer_one():
    save('set/seg_train/a.png', 'set/train/a.png')
    assert image_splits(Path('set')) == {'train': Path('set/train')}


@pytest.mark.parametrize(
    'folders', ['mask no_mask', 'with_mask without_mask', 'labels tr']
)
def test_photographs_of_such_names_are_classes(folders):
    first, second = folders.split()
    save(f'set/{first}/1.png', f'set/{second}/2.png')
    assert format_of(Path('set')) == 'classes'
    assert find_parts('labels', Path('set')).keys() == {'all'}


@pytest.mark.parametrize('pair', ['imgs gts', 'img_dir ann_dir', 'images labels'])
def test_folders_without_a_split(pair):
    images, maps = pair.split()
    save(f'set/{images}/a.png', f'set/{images}/b.png')
    save_maps(f'set/{maps}/a.png', f'set/{maps}/b.png')
    assert format_of(Path('set')) == 'labels'
    (part,) = find_parts('labels', Path('set'))['all']
    assert (part.images.name, part.annotations.name) == (images, maps)


@pytest.mark.parametrize('images', ['images', 'train', 'train_images', 'images_train'])
@pytest.mark.parametrize('kind', ['masks', 'labels'])
def test_of_masks_and_labels_the_ones_of_the_format_count(images, kind):
    names = [images.replace('images', name) for name in ('masks', 'labels')]
    names = names if 'images' in images else ['train_masks', 'train_labels']
    for name in (images, *names):
        save_maps(f'set/{name}/a.png')
    found = beside(kind, Path('set', images)).annotations.name
    assert found == names[kind == 'labels']
