"""mmattn data convert labels: numbers, colors and what 255 means."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from masked_images import SIZE, draw, run
from mmengine.config import Config
from PIL import Image

from mmattn.data import check
from mmattn.errors import UserError

DECODE = '--decode', '--num-workers', '0'


def test_label_maps(here):
    args = ['labels', 'images', 'masks', '--classes', *'abcdefgh', '--val', '0.2']
    run(*args)
    maps = sorted(Path('data/cells/labels/train').iterdir())
    assert len(maps) == 4
    name = maps[0].name
    np.testing.assert_array_equal(
        cv2.imread(str(maps[0]), -1), cv2.imread(f'masks/{name}', -1)
    )
    card = json.loads(Path('data/cells/dataset.json').read_text())
    assert set(card['counts']['train']['shares']) == set('abcdefgh')
    assert check.main(['data/upernet_ivit_n_cells.py', *DECODE]) == 0
    cfg = Config.fromfile('data/upernet_ivit_n_cells.py')
    assert cfg.model.decode_head.num_classes == 8
    assert cfg.train_dataloader.dataset.reduce_zero_label is False
    assert cfg.train_dataloader.dataset.metainfo.classes == tuple('abcdefgh')
    assert cfg.default_hooks.checkpoint.save_best == 'mIoU'


def test_label_maps_whose_training_lacks_a_class(here, capsys):
    cv2.imwrite('masks/0.png', draw([(5, 10, 30, 20, 1), (5, 40, 9, 9, 2)]))
    for index in range(1, 5):
        cv2.imwrite(f'masks/{index}.png', draw([(5, 10, 30, 20, 1)]))
    args = ['labels', 'images', 'masks', '--classes', *'abcd', '--val-images']
    run(*args, '0.png', '--tile', '30')
    assert 'train has nothing of c, unlike val:' in capsys.readouterr().err
    run(*args, '1.png', '--force')
    assert 'nothing of' not in capsys.readouterr().err


def classes_of_maps() -> set[int]:
    paths = Path('data/cells/labels').glob('*/*.png')
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
    assert not check.main(['data/upernet_ivit_n_cells.py', *DECODE])


def test_numbers_and_colors_that_are_no_class(here, capsys):
    args = ['labels', 'images', 'masks', '--classes', 'a', 'b']
    run(*args, '--ignore', '7')
    assert classes_of_maps() == {0, 1, 255}
    for index in range(5):
        colors = np.zeros((*SIZE, 3), np.uint8)
        colors[:5], colors[5:9] = (255, 128, 0), (1, 2, 3)
        Image.fromarray(colors).save(f'masks/{index}.png')
    args += ['--force', '--palette', '#ff8000']
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
    assert not Path('data/cells').exists()
    run(*args, '--palette', '#000000', '#ffffff')
    assert classes_of_maps() == {0, 1}
    run(*args, '--ignore', '255', '--force')
    assert classes_of_maps() == {0, 255}
    assert not check.main(['data/upernet_ivit_n_cells.py', *DECODE])
    assert 'warning: train_dataloader.dataset: 255 covers' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('drawn', 'classes', 'asked'),
    [((), 'a b c', True), ((1,), 'a b c', True), ((1,), 'a b c d e', False)],
)
def test_255_may_be_the_one_class_without_a_pixel(here, drawn, classes, asked):
    for index in range(5):
        boxes = [(5, 10, 30, 20, 255), *((0, 0, 5, 5, number) for number in drawn)]
        cv2.imwrite(f'masks/{index}.png', draw(boxes))
    args = ['labels', 'images', 'masks', '--classes', *classes.split()]
    if asked:
        with pytest.raises(UserError, match='Is 255 a class'):
            run(*args)
    else:
        run(*args)
        assert classes_of_maps() == {0, 1, 255}
