"""mmattn data convert: label maps of names other than those of their images."""

from pathlib import Path

import numpy as np
import pytest
from conversions import SIZE, run, save
from PIL import Image

from mmattn.errors import UserError

CITIES = 'aachen/aachen_000000_000019', 'aachen/aachen_000001_000019', 'jena/jena_1_2'

pytestmark = pytest.mark.usefixtures('empty_folder')


def save_map(name: str, value: int):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(SIZE[::-1], value, np.uint8)).save(name)


def convert(*args: str) -> dict[str, int]:
    """Return the class of each label map that is written."""
    run('labels', *args, '--classes', *'abcdef')
    files = sorted(Path('data/set/labels').rglob('*.png'))
    root = Path('data/set/labels')
    return {str(f.relative_to(root)): int(np.array(Image.open(f))[0, 0]) for f in files}


@pytest.mark.parametrize('kinds', ['labelIds labelTrainIds color', 'labelIds color'])
def test_cityscapes(kinds, capsys):
    expected = {}
    for split in ('train', 'val'):
        for value, name in enumerate(CITIES):
            save(f'city/leftImg8bit/{split}/{name}_leftImg8bit.png')
            for shift, kind in enumerate(kinds.split()):
                file = f'city/gtFine/{split}/{name}_gtFine_{kind}.png'
                save_map(file, value + shift)
            trained = value + ('TrainIds' in kinds)
            expected[f'{split}/{name}_leftImg8bit.png'] = trained
    assert convert('city') == expected
    said = capsys.readouterr().err
    assert '_gtFine_label' in said and 'is the mask of aachen/aachen_000000_' in said


@pytest.mark.parametrize('map_name', ['image_mask', 'image_1_L'])
def test_a_single_pair_shares_a_name_or_a_number(map_name):
    image = map_name[:-5] if 'mask' in map_name else 'photo_1'
    for split in ('train', 'val'):
        save(f'{split}/{image}.png')
        save_map(f'{split}_labels/{map_name}.png', 2)
    found = convert('.')
    assert found == {f'{split}/{image}.png': 2 for split in ('train', 'val')}


def test_label_maps_of_cityscapes_are_no_numbers_of_objects():
    for name in CITIES:
        save(f'i/{name}_leftImg8bit.png')
        for kind in ('labelIds', 'instanceIds'):
            save_map(f'm/{name}_gtFine_{kind}.png', 1)
    with pytest.raises(UserError, match='images without a mask'):
        run('masks', 'i', 'm')


def test_a_mask_too_many_is_named():
    for name in 'abc':
        save(f'i/{name}-photo.png')
        save_map(f'm/{name}-photo_mask.png', 1)
    save_map('m/d-photo_mask.png', 1)
    with pytest.raises(UserError, match="1 masks without an image, such as 'd-phot"):
        convert('i', 'm')


@pytest.mark.parametrize(
    'images, maps',
    [
        ('img_1 img_2 img_12', 'mask_1 mask_2 mask_12'),
        ('001_rgb 002_rgb 010_rgb', '001_gt 002_gt 010_gt'),
        ('frame frame-b c', 'frame_mask frame-b_mask c_mask'),
        ('day1_01 day1_02', 'gt_day1_01 gt_day1_02'),
    ],
)
def test_what_all_names_share_is_left_out(images, maps):
    pairs = zip(images.split(), maps.split(), strict=True)
    for value, (image, label_map) in enumerate(pairs):
        save(f'i/{image}.png')
        save_map(f'm/{label_map}.png', value)
    found = convert('i', 'm', '--val', '0.4')
    values = {Path(name).stem: value for name, value in found.items()}
    assert values == {name: value for value, name in enumerate(images.split())}


@pytest.mark.parametrize(
    'images, maps',
    [
        ('10 11 12', '20 21 22'),  # numbers stay whole
        ('day1_01 day1_02', 'day2_01 day2_02'),
        ('image', 'mask'),
        ('img_1', 'mask_2'),
        ('img_1 img_2', 'mask_1 mask_3'),
        ('img_1 img_2', 'mask_1'),
        ('img_1', 'mask_1 mask_2'),
    ],
)
def test_other_names_are_no_pairs(images, maps):
    save(*(f'i/{name}.png' for name in images.split()))
    for name in maps.split():
        save_map(f'm/{name}.png', 0)
    with pytest.raises(UserError, match="without an? (mask|image), such as '[01dim]"):
        convert('i', 'm')
