"""mmattn data convert --channels: TIFF files of five channels, for each task."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from conversions import SIZE, coco_json, run, save
from mmengine.config import Config
from PIL import Image

from mmattn.cli import data_check, train
from mmattn.data.image_files import dropped
from mmattn.data.inputs import statistics
from mmattn.errors import UserError

pytestmark = pytest.mark.usefixtures('empty_folder')
SHORT = ['train_cfg.max_iters=1', 'train_cfg.val_interval=1', 'scale_schedule=True']


def save_channels(*names: str, channels=5):
    """Write images of 16 bits whose channels have means of 1000, 2000, ..."""
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(sum(map(ord, name)))
        pixels = rng.normal(0, 100, (48, 64, channels)) + 1000
        pixels = (pixels * np.arange(1, channels + 1)).astype(np.uint16)
        tifffile.imwrite(name, pixels, photometric='minisblack', planarconfig='contig')


def write_objects() -> list[str]:
    save_channels(*(f'images/{name}.tif' for name in 'abcd'))
    Path('a.json').write_text(coco_json('a b c d', '.tif'))
    return ['coco', 'images', 'a.json']


def write_maps() -> list[str]:
    save_channels(*(f'images/{name}.tif' for name in 'abcd'))
    Path('labels').mkdir()
    for name in 'abcd':
        labels = Image.new('L', (64, 48))
        labels.paste(1, (0, 0, 30, 30))
        labels.save(f'labels/{name}.png')
    return ['labels', 'images', 'labels', '--classes', 'land', 'water']


def write_classes() -> list[str]:
    names = [f'images/{kind}/{name}.tif' for kind in ('x', 'y') for name in 'abcd']
    save_channels(*names)
    return ['classes', 'images']


@pytest.mark.parametrize('write', [write_objects, write_maps, write_classes])
def test_a_converted_set_trains(write, monkeypatch, forget_instances):
    run(*write(), '--channels', '5', '--pretrained', 'none')
    (config,) = Path('data').glob('*.py')
    model = Config.fromfile(config).model
    given = model.data_preprocessor
    assert np.allclose(given.mean, 1000 * np.arange(1, 6), rtol=0.01)
    assert np.allclose(given.std, 100 * np.arange(1, 6), rtol=0.1)
    assert not data_check.main([str(config), '--decode', '--num-workers', '0'])
    forget_instances()
    monkeypatch.setenv('LOCAL_RANK', '0')
    train.main([str(config), '--cfg-options', *SHORT])
    assert list(Path('work_dirs').rglob('best*.pth'))


def test_tiles_keep_all_channels():
    args = write_objects()
    run(*args, '--channels', '5', '--tile', '32', '--empty-tiles', '1')
    tiles = sorted(Path('data/set/train').rglob('*.tif'))
    assert len(tiles) > 3
    assert {tifffile.imread(tile).shape for tile in tiles} == {(32, 32, 5)}
    assert {tifffile.imread(tile).dtype for tile in tiles} == {np.dtype(np.uint16)}


def test_other_channels_are_named():
    args = write_objects()
    with pytest.raises(UserError, match=r'a\.tif .*--channels reads TIFF files'):
        run(*args)
    save_channels('images/c.tif', channels=4)
    with pytest.raises(UserError, match=r'c\.tif has shape .*4.* 5 channels'):
        run(*args, '--channels', '5')
    save('images/c.png')
    Path('a.json').write_text(coco_json('c', '.png'))
    with pytest.raises(UserError, match=r'c\.png cannot be read as a TIFF image'):
        run(*args, '--channels', '5')


def test_pixels_that_are_no_number_are_named():
    args = write_objects()
    pixels = np.ones((48, 64, 5), np.float32)
    pixels[:, :, 1], pixels[0, 0, 0] = np.nan, 3
    for name in 'ab':
        tifffile.imwrite(f'images/{name}.tif', pixels, photometric='minisblack')
    with pytest.raises(UserError, match='images/.*tif has pixels that are no number'):
        run(*args, '--channels', '5')


def test_a_channel_of_one_value_is_not_divided_by_zero():
    tifffile.imwrite('a.tif', np.full((9, 9, 5), 7, np.uint8), photometric='minisblack')
    assert statistics([Path('a.tif')], 5) == [[7.0] * 5, [1.0] * 5]


def test_pages_beyond_the_first_are_told_of(capsys):
    args = write_objects()
    for name in 'abcd':
        first, *rest = (Image.effect_noise(SIZE, 90) for _ in range(3))
        first.save(f'images/{name}.tif', save_all=True, append_images=rest)
    run(*args)
    assert '.tif has 3 pages of one size' in capsys.readouterr().err


def test_previews_are_no_pages():
    image = Image.effect_noise(SIZE, 90)
    image.save('a.tif', save_all=True, append_images=[image.resize((16, 12))])
    assert dropped([Path('a.tif')]) is None


@pytest.mark.parametrize(('kind', 'is_told'), [('unspecified', 1), ('unassalpha', 0)])
def test_a_fourth_channel_is_told_of_unless_it_is_transparency(kind, is_told, capsys):
    args = write_objects()
    for name in 'abcd':
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (48, 64, 4))
        path = f'images/{name}.tif'
        pixels = pixels.astype(np.uint8)
        tifffile.imwrite(path, pixels, photometric='rgb', extrasamples=[kind])
    run(*args)
    told = capsys.readouterr().err
    assert (
        told.count('4 channels, of which the first 3 are read: --channels 4') == is_told
    )


def test_pages_that_are_channels_are_read_together():
    args = write_objects()
    for name in 'abcd':
        first, *rest = (Image.effect_noise(SIZE, 90) for _ in range(3))
        first.save(f'images/{name}.tif', save_all=True, append_images=rest)
    run(*args, '--channels', '3')
    (config,) = Path('data').glob('*.py')
    assert len(Config.fromfile(config).model.data_preprocessor.mean) == 3


def test_what_is_no_tiff_file_has_no_dropped_channels():
    Image.new('RGB', SIZE).save('a.png')
    Path('a.png').rename('a.tif')
    first, second = (Image.effect_noise(SIZE, 90) for _ in range(2))
    first.save('b.tif', save_all=True, append_images=[second])
    whole = Path('b.tif').read_bytes()
    Path('b.tif').write_bytes(whole[: len(whole) // 2])
    for name in ('a.tif', 'b.tif', 'a.png'):
        assert dropped([Path(name)]) is None
