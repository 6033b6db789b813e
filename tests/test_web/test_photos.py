"""Images of users: limits, broken files and places in shown pictures."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mmattn.web.photos import Photo, example_images, images_in


def write(path, height=4, width=6):
    pixels = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    Image.fromarray(pixels).save(path)
    return pixels


def test_places_in_pictures_that_are_shown_in_another_size():
    photo = Photo('a', np.zeros((900, 1600, 3), np.uint8))
    assert photo.shown() is photo.pixels and photo.pixel(39, 29) == (29, 39)
    large = Photo('a', np.zeros((800, 4000, 3), np.uint8))
    assert large.shown().shape == (320, 1600, 3)
    assert large.pixel(0, 0) == (1, 1)  # the middle of 2.5 x 2.5 pixels
    assert large.pixel(1599, 319) == (798, 3998)
    assert large.pixel(9999, 9999) == (799, 3999)
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    small = Photo('a', pixels)
    assert small.shown().shape == (480, 640, 3)
    np.testing.assert_array_equal(small.shown()[::160, ::160], pixels)
    for x, y in ((0, 0), (159, 0), (160, 159), (639, 479)):
        np.testing.assert_array_equal(pixels[small.pixel(x, y)], small.shown()[y, x])
    from mmattn.web.page import _place  # imports gradio, for seconds

    assert _place(small, SimpleNamespace(index=[400, 200])) == (2, 1)


def test_images_of_a_folder(tmp_path):
    folder = tmp_path / 'images'
    (folder / 'below').mkdir(parents=True)
    for path in ('b.png', 'a.JPG', 'below/c.png', '../secret.png'):
        write(folder / path)
    (folder / 'notes.txt').write_text('')
    (folder / 'link.png').symlink_to(tmp_path / 'secret.png')
    (folder / 'inner.png').symlink_to(folder / 'below/c.png')
    found = images_in(folder)
    assert list(found) == ['a.JPG', 'b.png', 'inner.png']
    for prefix in ('images/below', dict(img='images/below'), dict(img_path='images')):
        found = example_images(dict(data_root=str(tmp_path), data_prefix=prefix))
        assert found['c.png'] == folder / 'below/c.png'
    assert not example_images(dict(data_root='missing')) and not example_images({})
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='has no images'):
        images_in(tmp_path / 'empty')
    with pytest.raises(ValueError, match='there is no folder'):
        images_in(tmp_path / 'missing')
