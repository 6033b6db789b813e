"""Images and their resizing beside OpenCV, Pillow and mmcv: equal in all uses."""

import io
import itertools
import os
import struct
import zlib
from functools import partial

import cv2
import mmcv
import numpy as np
import pytest
import tifffile
from mmengine.dataset import BaseDataset
from PIL import EpsImagePlugin, Image, ImageCms

from mmattn.apis.sources import pictures
from mmattn.engine.data.checked_dataset import check_pipelines
from mmattn.engine.data.loading import LoadImage
from mmattn.errors import UserError
from mmattn.images import NoImageError, read_channels, read_image, read_labels, resize


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


FORMATS = ['BMP', 'GIF', 'JPEG', 'JPEG2000', 'PNG', 'PPM', 'TIFF', 'WEBP']
MODES = ['RGB', 'RGBA', 'L', 'LA', 'P', '1', 'I;16', 'CMYK', 'LAB']


def saved(mode: str, kind: str, orientation: int) -> bytes | None:
    """An image file of a camera or a drawing program, or None if there is no such."""
    smooth = cv2.resize(noise(4, 6, 4), (31, 22), interpolation=cv2.INTER_CUBIC)
    image = Image.fromarray(smooth)
    if mode == 'I;16':
        image = Image.fromarray(noise(22, 31, dtype=np.uint16))
    elif mode not in ('RGBA', 'LA'):
        image = image.convert('RGB')
    if mode == 'LAB':
        rgb, lab = ImageCms.createProfile('sRGB'), ImageCms.createProfile('LAB')
        image = ImageCms.profileToProfile(image, rgb, lab, outputMode='LAB')
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    try:
        image.convert(mode).save(file, kind, exif=exif, lossless=kind == 'WEBP')
    except (OSError, ValueError):
        return None
    return file.getvalue()


def test_training_and_prediction_see_equal_pixels(tmp_path):
    """Formats, modes and orientations, as a stock config loads them in our training."""
    dataset = BaseDataset(lazy_init=True, pipeline=[dict(type='LoadImageFromFile')])
    check_pipelines(dataset)
    seen = 0
    for kind, mode, turned in itertools.product(FORMATS, MODES, (1, 6)):
        content = saved(mode, kind, turned)
        if content is None:
            continue
        path = tmp_path / f'{kind}{mode}{turned}'
        path.write_bytes(content)
        trained = dataset.pipeline(dict(img_path=str(path)))['img'][..., ::-1]
        (predicted,) = pictures([path])
        np.testing.assert_array_equal(predicted.pixels, trained, err_msg=path.name)
        has_exif = kind in ('JPEG', 'PNG', 'TIFF', 'WEBP')
        assert trained.shape == (
            (31, 22, 3) if turned == 6 and has_exif else (22, 31, 3)
        )
        # OpenCV agrees where it reads right.
        if mode in ('RGB', 'L', 'P', '1', 'I;16') and (kind, turned) != ('WEBP', 6):
            usual = mmcv.imread(str(path), channel_order='rgb')
            np.testing.assert_array_equal(predicted.pixels, usual, err_msg=path.name)
        seen += 1
    assert seen > 60


def test_turned_images_and_deep_colors(tmp_path):
    path, exif = tmp_path / 'image.png', Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        Image.fromarray(noise(6, 9, 3)).save(path, exif=exif)
        expected = mmcv.imread(str(path), channel_order='rgb')
        np.testing.assert_array_equal(read_image(path), expected)
        with Image.open(path) as opened:
            np.testing.assert_array_equal(read_image(opened), expected)
    deep = noise(6, 9, 4, dtype=np.uint16)
    for pixels, options in ((deep, {}), (deep[..., :3], dict(compression='zlib'))):
        extra = [('Orientation', 'H', 1, 6, True)]
        tifffile.imwrite(
            path, pixels, photometric='rgb', planarconfig=1, extratags=extra, **options
        )
        expected = np.rot90(pixels[..., :3] >> 8, -1)
        np.testing.assert_array_equal(read_image(path), expected)
    planes = np.moveaxis(deep[..., :3], 2, 0)  # Pillow mixes their bytes
    tifffile.imwrite(path, planes, photometric='rgb', planarconfig=2)
    np.testing.assert_array_equal(read_image(path), deep[..., :3] >> 8)
    gray = np.repeat(planes[0, ..., None] >> 8, 3, 2)
    one_plane = dict(format='TIFF', tiffinfo={284: 2})
    Image.fromarray(planes[0]).save(path, **one_plane)
    np.testing.assert_array_equal(read_image(path), gray)


def test_label_maps_are_numbers(tmp_path):
    """Palettes, such as Pascal VOC's, 1 bit, gray as color, and 16 bits."""
    numbers, path = noise(6, 9) % 2, tmp_path / 'map.png'
    colors = Image.fromarray(numbers)
    colors.putpalette([9, 8, 7, 200, 100, 50])
    gray = Image.fromarray(numbers)
    for image in (colors, gray.point(lambda n: 255 * n).convert('1'), gray):
        image.save(path)
        np.testing.assert_array_equal(read_labels(path), numbers)
    gray.convert('RGBA').save(path)
    np.testing.assert_array_equal(read_labels(path), numbers)
    deep = noise(6, 9, dtype=np.uint16)
    Image.fromarray(deep).save(path)
    np.testing.assert_array_equal(read_labels(path), deep)
    Image.fromarray(noise(6, 9, 3)).save(path)
    with pytest.raises(UserError, match=r'map.png is a color image; .* mode RGB'):
        read_labels(path)


def png_of(side: int) -> bytes:
    """A PNG of a few bytes that claims to be large."""
    parts = b'\x89PNG\r\n\x1a\n'
    header = struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0)
    for content in (b'IHDR' + header, b'IDAT'):
        parts += struct.pack('>I', len(content) - 4) + content
        parts += struct.pack('>I', zlib.crc32(content))
    return parts


def test_sizes_are_bounded_before_anything_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / 'a.png'
    for side in (13_000, 60_000):
        path.write_bytes(png_of(side))
        for read in (read_image, read_labels):
            with pytest.raises(UserError, match='a.png has more than 89 million'):
                read(path)
    Image.fromarray(noise(40, 60, 3)).save(path)
    with pytest.raises(UserError, match='60 x 40 pixels, .* as 0.0024 million'):
        read_image(path, max_megapixels=0.002)
    monkeypatch.setattr(tifffile.TiffPageSeries, 'asarray', None)
    pixels = np.zeros((40, 50, 4000), np.uint8)
    options = dict(photometric='minisblack', planarconfig='contig')
    tifffile.imwrite(tmp_path / 'a.tif', pixels, compression='zlib', **options)
    with pytest.raises(UserError, match='50 x 40 pixels of 4000 bytes, .* 1 million'):
        read_channels(tmp_path / 'a.tif', 4000, max_megapixels=0.9)


def test_strips_have_no_more_than_their_pixels(tmp_path):
    strips = iter([zlib.compress(bytes(1001))])
    options = dict(shape=(10, 10, 5), dtype=np.uint8, planarconfig='contig')
    options |= dict(photometric='minisblack', compression='zlib')
    tifffile.imwrite(tmp_path / 'a.tif', strips, **options)
    with pytest.raises(UserError, match='a.tif cannot be read as an image: .*SPACE'):
        read_channels(tmp_path / 'a.tif', 5)


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('planes', [False, True])
def test_channels_are_turned_as_colors_are(tmp_path, planes, orientation):
    pixels, path = noise(6, 9, 3), tmp_path / 'a.tif'
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif, compression='tiff_lzw')
    expected = read_image(path)
    np.testing.assert_array_equal(read_channels(path, 3), expected)
    five = np.concatenate([pixels, pixels[..., :2]], 2)
    tag = [('Orientation', 'H', 1, orientation, True)]
    kind = dict(planarconfig='contig', data=five)
    if planes:
        kind = dict(planarconfig='separate', data=five.transpose(2, 0, 1))
    tifffile.imwrite(path, photometric='minisblack', extratags=tag, **kind)
    np.testing.assert_array_equal(read_channels(path, 5)[..., :3], expected)


def test_windows_of_planes_are_refused(tmp_path, monkeypatch):
    """libvips reads wrong rows from them."""
    path = tmp_path / 'planes.tif'
    monkeypatch.setattr('mmattn.images.read.MAX_MEGAPIXELS', 0.0001)
    for kind, count in dict(minisblack=5, rgb=3).items():
        planes = noise(count, 20, 30)
        tifffile.imwrite(path, planes, photometric=kind, planarconfig='separate')
        read = partial(read_channels, channels=5) if count == 5 else read_image
        with pytest.raises(UserError, match=f'planes.tif .* for each of its {count}'):
            read(path, max_megapixels=1, windows=True)


@pytest.mark.parametrize('kind', ['zlib', 'planes'])
def test_damaged_tiff_files_end_in_one_error(tmp_path, monkeypatch, kind):
    """Whatever the decoder raises, a folder goes on with the next file."""
    path, rng = tmp_path / 'a.tif', np.random.default_rng(0)
    options = dict(compression='zlib') if kind == 'zlib' else {}
    tifffile.imwrite(path, noise(5, 9, 9), photometric='minisblack', **options)
    monkeypatch.setattr('mmattn.apis.sources.LOGGER.warning', lambda *_: None)
    whole, failed = path.read_bytes(), 0
    for _ in range(70):
        content = bytearray(whole)
        for place in rng.integers(0, len(content), 3):
            content[place] = rng.integers(0, 256)
        path.write_bytes(content[: rng.integers(len(content) // 2, len(content) + 9)])
        failed += not list(pictures([path], skip_broken=True, channels=5))
        try:
            read_channels(path, 5)
        except UserError as error:
            assert path.name in str(error) and '\n' not in str(error)
    assert failed > 10


@pytest.mark.parametrize('suffix', ['.png', '.jpg', '.tif', '.tiff'])
@pytest.mark.parametrize('mode', ['RGB', 'RGBA', 'L', 'P', '1', 'I;16'])
def test_windows_are_parts_of_the_whole_image(tmp_path, mode, suffix, monkeypatch):
    pytest.importorskip('pyvips')
    kind = {'.png': 'PNG', '.jpg': 'JPEG'}.get(suffix, 'TIFF')
    content = saved(mode, kind, 6 if suffix != '.tiff' else 1)
    if content is None:
        return
    path = tmp_path / f'image{suffix}'
    path.write_bytes(content)
    whole = read_image(path)
    monkeypatch.setattr('mmattn.images.read.MAX_MEGAPIXELS', 0.0001)
    with pytest.raises(UserError, match='has more than 0.0001 million|cannot be read'):
        read_image(path, max_megapixels=0.0001)
    image = read_image(path, max_megapixels=1, windows=True)
    assert image.shape == whole.shape and image.dtype == whole.dtype
    for window in (np.s_[3:9, 5:20], np.s_[0:1, 0:1], np.s_[:, :]):
        np.testing.assert_array_equal(image[window], whole[window])
    loaded = LoadImage(max_megapixels=1)(dict(img_path=str(path)))['img']
    np.testing.assert_array_equal(loaded[..., ::-1], whole)


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
