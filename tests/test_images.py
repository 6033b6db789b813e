"""Images and their resizing beside OpenCV, Pillow and mmcv."""

import os

import cv2
import mmcv
import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from mmattn.images import NoImageError, read_image, resize


def noise(*shape, dtype=np.uint8, seed=0):
    high = np.iinfo(dtype).max + 1
    return np.random.default_rng(seed).integers(0, high, shape, dtype)


@pytest.mark.parametrize(
    'interpolation, backend',
    [
        ('bilinear', 'cv2'),
        ('bicubic', 'cv2'),
        ('nearest', 'cv2'),
        ('bilinear', 'pillow'),
        ('bicubic', 'pillow'),
    ],
)
def test_resize_equals_mmcv(interpolation, backend):
    settings = dict(interpolation=interpolation, backend=backend)
    for shape, size in {(60, 97): (200, 133), (45, 70): (24, 31)}.items():
        image = noise(*shape, 3)
        expected = mmcv.imresize(image, size, **settings)
        np.testing.assert_array_equal(resize(image, size, **settings), expected)


def test_resize_refuses_other_interpolations():
    with pytest.raises(ValueError, match='area'):
        resize(noise(4, 4, 3), (2, 2), 'area')


@pytest.mark.parametrize(
    'suffix, shape, dtype',
    [
        ('.png', (9, 7, 3), np.uint8),
        ('.png', (9, 7), np.uint8),
        ('.png', (9, 7, 4), np.uint8),
        ('.png', (9, 7), np.uint16),
        ('.jpg', (40, 56, 3), np.uint8),
        ('.tif', (9, 7, 3), np.uint8),
    ],
    ids=['png', 'gray', 'alpha', '16_bits', 'jpeg', 'tiff'],
)
def test_files_are_read_as_mmcv_reads_them(tmp_path, suffix, shape, dtype):
    path = tmp_path / f'image{suffix}'
    assert cv2.imwrite(str(path), noise(*shape, dtype=dtype))
    expected = mmcv.imread(str(path), channel_order='rgb')
    np.testing.assert_array_equal(read_image(path), expected)


def test_orientation_is_that_of_mmcv(tmp_path):
    path, exif = tmp_path / 'image.png', Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        Image.fromarray(noise(6, 9, 3)).save(path, exif=exif)
        expected = mmcv.imread(str(path), channel_order='rgb')
        np.testing.assert_array_equal(read_image(path), expected)
        with Image.open(path) as opened:
            np.testing.assert_array_equal(read_image(opened), expected)


def test_palettes_are_read_as_colors(tmp_path):
    image = Image.fromarray(noise(6, 9, 3)).quantize(4)
    image.save(tmp_path / 'image.png')
    expected = mmcv.imread(str(tmp_path / 'image.png'), channel_order='rgb')
    np.testing.assert_array_equal(read_image(tmp_path / 'image.png'), expected)


def test_arrays():
    color, gray = noise(6, 9, 4), noise(6, 9)
    np.testing.assert_array_equal(read_image(color), color[:, :, :3])
    np.testing.assert_array_equal(read_image(gray)[:, :, 2], gray)
    np.testing.assert_array_equal(read_image(gray[:, :, None]), read_image(gray))


@pytest.mark.parametrize(
    'array',
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((3, 4, 5), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
    ids=['float', 'channels_first', 'batch', 'empty'],
)
def test_other_arrays_are_refused(array):
    with pytest.raises(ValueError, match='must be uint8 of shape'):
        read_image(array)


def test_what_is_no_image_is_refused(tmp_path):
    (tmp_path / 'text.jpg').write_text('no image')
    Image.fromarray(noise(60, 90, 3)).save(tmp_path / 'whole.jpg')
    (tmp_path / 'half.jpg').write_bytes((tmp_path / 'whole.jpg').read_bytes()[:900])
    for name in ('text.jpg', 'half.jpg'):
        with pytest.raises(ValueError, match=name):
            read_image(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / 'missing.jpg')
    with pytest.raises(ValueError, match='got int'):
        read_image(3)
    with pytest.raises(ValueError, match='mode F'):
        read_image(Image.fromarray(np.zeros((4, 4), np.float32)))


def test_postscript_by_another_name_starts_no_program(tmp_path, monkeypatch):
    program = tmp_path / 'gs'
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/started\n')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, 'gs_binary', None)  # not searched for yet
    Image.new('RGB', (8, 8)).save(tmp_path / 'photo.jpg', 'EPS')
    with pytest.raises(NoImageError, match='photo.jpg cannot be read as an image of'):
        read_image(tmp_path / 'photo.jpg')
    assert not (tmp_path / 'started').exists()
