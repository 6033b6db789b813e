"""Masks of which each file is an object, as in the Data Science Bowl of 2018."""

from pathlib import Path

import pytest
from conversions import SIZE, run, save
from PIL import Image

from mmattn.data.recognize import format_of
from mmattn.errors import UserError

pytestmark = pytest.mark.usefixtures('empty_folder')

# Two objects that overlap, and one of two parts.
OBJECTS = [[(2, 2, 12, 10)], [(8, 6, 20, 16)], [(30, 5, 36, 9), (30, 20, 36, 24)]]
BOXES = [[2, 2, 10, 8], [8, 6, 12, 10], [30, 5, 6, 19]]
LAYOUTS = {
    '{0}/images/{0}.png': '{0}/masks',
    'images/{0}.png': 'masks/{0}',
    '{0}.png': 'masks/{0}',
}


def save_objects(folder: str, objects=OBJECTS, gray=255):
    Path(folder).mkdir(parents=True)
    for number, boxes in enumerate(objects):
        mask = Image.new('L', SIZE)
        for box in boxes:
            mask.paste(gray, box)
        mask.save(f'{folder}/{number}.png')


@pytest.mark.parametrize(('image', 'masks'), LAYOUTS.items())
def test_each_file_is_an_object(image, masks):
    for name in 'abc':
        save(f'set/{image}'.format(name))
        folder = f'set/{masks}'.format(name)
        save_objects(folder, OBJECTS if name != 'c' else [])
        for hidden in ('.DS_Store', '._0.png'):  # as macOS leaves them
            Path(folder, hidden).write_text('no image')
    assert format_of(Path('set')) == 'masks'
    written = run('masks', 'set', '--val', '0.3', '--classes', 'nucleus')
    entries = [e for part in written.values() for e in part['annotations']]
    images = sum((part['images'] for part in written.values()), [])
    assert sorted(i['file_name'] for i in images) == [
        image.format(name).removeprefix('images/') for name in 'abc'
    ]
    assert [entry['bbox'] for entry in entries] == BOXES * 2
    assert [entry['area'] for entry in entries] == [80, 120, 48] * 2


def test_an_image_without_a_folder_is_named():
    save('set/images/a.png', 'set/images/b.png')
    save_objects('set/masks/a')
    with pytest.raises(UserError, match=r'1 images without a folder .*b\.png'):
        run('masks', 'set')


def test_a_file_of_several_numbers_is_named():
    for name in 'ab':
        save(f'set/{name}/images/{name}.png')
        save_objects(f'set/{name}/masks')
    mask = Image.open('set/b/masks/1.png')
    mask.paste(7, (40, 40, 44, 44))
    mask.save('set/b/masks/1.png')
    with pytest.raises(UserError, match=r'b/masks/1\.png must be the mask of one'):
        run('masks', 'set')


@pytest.mark.parametrize('layout', ['train/{}.png train_masks/{}_mask.gif'])
def test_masks_of_carvana_are_gif_files(layout):
    image, mask = layout.split()
    for name in 'ab':
        save(f'set/{image.format(name)}')
        save_objects(f'here/{name}', OBJECTS[:1])
        Path('set', mask.format(name)).parent.mkdir(exist_ok=True)
        Image.open(f'here/{name}/0.png').save(Path('set', mask.format(name)))
    assert format_of(Path('set')) == 'masks'
    written = run('masks', 'set/train', 'set/train_masks')
    assert [a['bbox'] for a in written['train']['annotations']] == BOXES[:1]


@pytest.mark.parametrize('gray', [255, 90])
def test_smoothed_borders_are_no_objects(gray, capsys):
    """But numbers whose objects are wider than a border are."""
    for name in 'ab':
        save(f'images/{name}.png')
        mask = Image.new('L', SIZE)
        mask.paste(255, (4, 4, 30, 30))
        mask.paste(gray, (40, 4, 60, 20))
        if gray == 255:
            mask = mask.rotate(9, Image.Resampling.BICUBIC)
        Path('masks').mkdir(exist_ok=True)
        mask.save(f'masks/{name}.png')
    written = run('masks', 'images', 'masks')
    assert all(len(each['annotations']) == 2 for each in written.values())
    assert ('smoothed' in capsys.readouterr().err) == (gray == 255)


def test_a_folder_for_each_class_stays_one():
    save('images/a.png', 'images/b.png')
    for name in ('cell', 'dust'):
        for image in 'ab':
            save_objects(f'here/{image}', OBJECTS[:1])
            Path(f'masks/{name}').mkdir(parents=True, exist_ok=True)
            Path(f'here/{image}/0.png').rename(f'masks/{name}/{image}.png')
            Path(f'here/{image}').rmdir()
    written = run('masks', 'images', 'masks')
    assert {c['name'] for c in written['train']['categories']} == {'cell', 'dust'}
