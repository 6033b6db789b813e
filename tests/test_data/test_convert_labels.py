"""mmattn data convert labels: numbers, colors and what 255 means."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from conversions import MASK, draw, run
from mmengine.config import Config
from PIL import Image, ImageColor

from mmattn.cli import data_check
from mmattn.errors import UserError
from mmattn.images import read_image

DECODE = '--decode', '--num-workers', '0'


def test_label_maps_whose_training_lacks_a_class(here, capsys):
    cv2.imwrite('masks/0.png', draw([(5, 10, 30, 20, 1), (5, 40, 9, 9, 2)]))
    for index in range(1, 5):
        cv2.imwrite(f'masks/{index}.png', draw([(5, 10, 30, 20, 1)]))
    args = ['labels', 'images', 'masks', '--classes', *'abcd', '--val-images']
    run(*args, '0.png', '--tile', '30')
    assert 'train has nothing of c, unlike val:' in capsys.readouterr().err
    run(*args, '1.png')
    assert 'nothing of' not in capsys.readouterr().err


def classes_of_maps() -> set[int]:
    paths = Path('data/set/labels').glob('*/*.png')
    return {n for path in paths for n in np.unique(cv2.imread(str(path), -1)).tolist()}


@pytest.mark.parametrize('mode', ['P', '1'])
def test_label_maps_of_palettes_and_of_one_bit(here, mode):
    """As Pascal VOC writes them: OpenCV makes colors of both."""
    for index in range(5):
        image = Image.fromarray(draw([(5, 10, 10, 8, 1)]))
        if mode == 'P':
            image.putpalette([0, 0, 0, 128, 0, 0])
        else:
            image = image.point(lambda n: 255 * n).convert('1')
        image.save(f'masks/{index}.png')
    run('labels', 'images', 'masks', '--classes', 'a', 'b')
    assert classes_of_maps() == {0, 1}
    assert not data_check.main(['data/upernet_ivit_n_set.py', *DECODE])


def save_jpeg(colors: list[tuple[int, int, int]]) -> list[np.ndarray]:
    """Write label maps as JPEG files, and return the numbers of their colors."""
    numbers = []
    for index in range(5):
        Path(f'masks/{index}.png').unlink(missing_ok=True)
        numbers.append(draw([(5, 10 + index, 10, 8, 1), (20, 30, 9, 9, 1)]))
        pixels = np.array(colors, np.uint8)[numbers[-1]]
        Image.fromarray(pixels).save(f'masks/{index}.jpg', quality=80)
    return numbers


def test_compression_changes_no_class_and_makes_no_objects(here):
    colors = '#440154', '#fde724'
    numbers = save_jpeg([*map(ImageColor.getrgb, colors)])
    run('labels', 'images', 'masks', '--classes', *'ab', '--palette', *colors)
    for path in Path('data/set/labels').rglob('*.png'):
        found = np.asarray(Image.open(path))
        assert (found != numbers[int(path.stem)]).sum() < 5
    save_jpeg([(0, 0, 0), (255, 255, 255)])
    run('masks', 'images', 'masks')
    path = Path('data/set/annotations/instances_train.json')
    found = json.loads(path.read_text())['annotations']
    assert len(found) == 8 and {entry['area'] for entry in found} == {80, 81}


def test_compressed_colors_are_refused(here):
    save_jpeg([(0, 0, 0), (0, 128, 0)])
    for kind in (['masks'], ['labels', '--classes', 'a', 'b']):
        with pytest.raises(UserError, match='masks/0.jpg is a JPEG file, whose compr'):
            run(kind[0], 'images', 'masks', *kind[1:])


@pytest.mark.parametrize(
    'names, written',
    [('0.JPG 1.jpeg 2.jpg', '.jpg'), ('0.png 1.jpg 2.bmp 3.tif', '.png')],
    ids=['spelled', 'kinds'],
)
def test_images_of_several_suffixes(here, names, written):
    """mmseg reads images of one suffix."""
    for index in range(5):
        Path(f'images/{index}.png').rename(f'first-{index}.png')
    for name in [*names.split(), f'4{written}']:
        image = Image.open(f'first-{Path(name).stem}.png')
        image.save(Path('images', name))
    for index in range(5):
        if not list(Path('images').glob(f'{index}.*')):
            Path(f'masks/{index}.png').unlink()
    files = {path.stem: read_image(path) for path in Path('images').iterdir()}
    run('labels', 'images', 'masks', '--classes', *'abcdefgh')
    paths = sorted(Path('data/set/images').rglob('*.*'), key=lambda path: path.stem)
    assert [path.name for path in paths] == [f'{n}{written}' for n in sorted(files)]
    for path in paths:
        np.testing.assert_array_equal(read_image(path), files[path.stem])
    for path in Path('data/set/labels').rglob('*.png'):
        given, found = (cv2.imread(str(p), -1) for p in (f'masks/{path.name}', path))
        np.testing.assert_array_equal(found, given)
    cfg = Config.fromfile('data/upernet_ivit_n_set.py')
    assert cfg.test_dataloader.dataset.img_suffix == written
    assert cfg.train_dataloader.dataset.reduce_zero_label is False
    assert cfg.train_dataloader.dataset.metainfo.classes == tuple('abcdefgh')
    assert cfg.model.decode_head.num_classes == 8
    assert cfg.default_hooks.checkpoint.save_best == 'mIoU'
    card = json.loads(Path('data/set/dataset.json').read_text())
    assert set(card['counts']['train']['shares']) == set('abcdefgh')
    assert data_check.main(['data/upernet_ivit_n_set.py', *DECODE]) == 0


def test_numbers_and_colors_that_are_no_class(here, capsys):
    args = ['labels', 'images', 'masks', '--classes', 'a', 'b']
    run(*args, '--ignore', '7')
    assert classes_of_maps() == {0, 1, 255}
    for index in range(5):
        colors = np.zeros((*MASK, 3), np.uint8)
        colors[:5], colors[5:9] = (255, 128, 0), (1, 2, 3)
        Image.fromarray(colors).save(f'masks/{index}.png')
    args += ['--palette', '#ff8000']
    with pytest.raises(UserError, match='--palette must have a color .* the 2 classes'):
        run(*args)
    with pytest.raises(UserError, match="#010203, .* pass --ignore '#010203'"):
        run(*args, 'black')
    run(*args, 'black', '--ignore', '#010203')
    assert classes_of_maps() == {0, 1, 255}


def test_black_and_white_label_maps_ask_whether_255_is_a_class(here, capsys):
    for index in range(5):
        cv2.imwrite(f'masks/{index}.png', draw([(5, 10, 30, 20, 255)]))
    args = ['labels', 'images', 'masks', '--classes', 'ground', 'cell']
    message = 'masks: 255 covers 25.0% .* cell has no pixel. Is 255 a class?'
    with pytest.raises(UserError, match=message):
        run(*args)
    assert not Path('data/set').exists()
    run(*args, '--palette', '#000000', '#ffffff')
    assert classes_of_maps() == {0, 1}
    run(*args, '--ignore', '255')
    assert classes_of_maps() == {0, 255}
    assert not data_check.main(['data/upernet_ivit_n_set.py', *DECODE])
    assert 'warning: train_dataloader.dataset: 255 covers' in capsys.readouterr().err


def test_255_may_be_the_one_class_without_a_pixel(here):
    for index in range(5):
        cv2.imwrite(f'masks/{index}.png', draw([(5, 10, 30, 20, 255), (0, 0, 5, 5, 1)]))
    args = ['labels', 'images', 'masks', '--classes']
    with pytest.raises(UserError, match='Is 255 a class'):
        run(*args, *'abc')
    run(*args, *'abcde')
    assert classes_of_maps() == {0, 1, 255}
