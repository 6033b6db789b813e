"""mmattn data convert: label maps of names other than those of their images."""

from pathlib import Path

import numpy as np
import pytest
from conversions import SIZE, run, save
from PIL import Image

from mmattn.errors import UserError

CITIES = 'aachen/aachen_000000_000019', 'aachen/aachen_000001_000019', 'jena/jena_1_2'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


@pytest.mark.parametrize(
    'images, maps',
    [
        ('img_1 img_2 img_12', 'mask_1 mask_2 mask_12'),
        ('001_rgb 002_rgb 010_rgb', '001_gt 002_gt 010_gt'),
        ('1 12 21', '1_L 12_L 21_L'),
        ('frame frame-b c', 'frame_mask frame-b_mask c_mask'),
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
        ('img_1 img_2', 'mask_1 mask_3'),
        ('img_1 img_2', 'mask_1'),
        ('img_1', 'mask_1 mask_2'),
    ],
)
def test_other_names_are_no_pairs(images, maps):
    save(*(f'i/{name}.png' for name in images.split()))
    for name in maps.split():
        save_map(f'm/{name}.png', 0)
    with pytest.raises(UserError, match="without an? (mask|image), such as '[1im]"):
        convert('i', 'm')
