"""Images from every kind of source."""

import cv2
import numpy as np
import pytest
from PIL import Image
from predictor_models import noise
from refusals import refuses

from mmattn.apis import sources
from mmattn.apis.sources import Listed, count, expand, pictures


def read(source, **options):
    return list(pictures(expand(source)[0], **options))


@pytest.fixture
def folder(tmp_path):
    """A folder with two images, a text and a folder of one more."""
    for i, name in enumerate(['b.png', 'a.PNG', 'below/c.png']):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(noise(9, 12, i)).save(tmp_path / name)
    (tmp_path / 'notes.txt').write_text('no image')
    return tmp_path


@pytest.fixture
def video(tmp_path):
    path = tmp_path / 'clip.avi'
    codec = cv2.VideoWriter_fourcc(*'MJPG')
    writer = cv2.VideoWriter(str(path), codec, 10.0, (64, 48))
    for value in (40, 120, 200):
        frame = np.zeros((48, 64, 3), np.uint8)
        frame[..., 2] = value  # red
        writer.write(frame)
    writer.release()
    return path


def test_one_image():
    pixels = noise(9, 12)
    for source in (pixels, Image.fromarray(pixels)):
        items, single = expand(source)
        (picture,) = pictures(items)
        np.testing.assert_array_equal(picture.pixels, pixels)
        assert single and picture.source is None


def test_files_and_folders(folder):
    (one,) = read(folder / 'b.png')
    assert one.source == str(folder / 'b.png') and expand(folder / 'b.png')[1]
    np.testing.assert_array_equal(one.pixels, noise(9, 12, 0))
    names = [picture.source for picture in read(str(folder))]
    assert names == [str(folder / name) for name in ('a.PNG', 'b.png')]
    assert not expand(folder)[1]
    items, _ = expand(folder)
    assert [type(item) for item in expand(items)[0]] == [Listed] * len(items)


@pytest.mark.parametrize(
    'pattern, names',
    [('*.png', ['b.png']), ('**/*', ['a.PNG', 'b.png', 'below/c.png'])],
)
def test_patterns(folder, pattern, names):
    found = read(f'{folder}/{pattern}')
    assert [picture.source for picture in found] == [str(folder / n) for n in names]


def test_names_with_brackets_are_files(folder):
    (folder / 'b.png').rename(folder / '[1].png')
    assert len(read(folder / '[1].png')) == 1


def test_lists_of_anything(folder, video):
    items, single = expand([folder, [noise(5, 6)], str(video)])
    assert not single and count(items) == 6
    found = list(pictures(items))
    assert [each.pixels.shape[:2] for each in found] == (
        [(9, 12)] * 2 + [(5, 6)] + [(48, 64)] * 3
    )


def test_videos_are_lists_of_frames(video):
    items, single = expand(video)
    assert not single and count(items) == 3
    found = list(pictures(items))
    assert [each.source for each in found] == [f'{video}#{i}' for i in range(3)]
    for each, value in zip(found, (40, 120, 200), strict=True):
        red, green, _ = each.pixels.mean((0, 1))
        assert abs(red - value) < 6 and green < 6
    assert sources.video_facts(video) == (3, 10.0)


def test_addresses(serve, folder, monkeypatch):
    served, _ = serve(folder)
    (found,) = read(f'{served}/b.png')
    np.testing.assert_array_equal(found.pixels, noise(9, 12, 0))
    assert found.source == f'{served}/b.png'
    with pytest.raises(OSError, match='missing.png cannot be downloaded: .*404'):
        read(f'{served}/missing.png')
    with pytest.raises(ValueError, match='notes.txt cannot be read as an image'):
        read(f'{served}/notes.txt')
    monkeypatch.setattr(sources, 'MAX_DOWNLOAD', 20)
    with pytest.raises(ValueError, match='is larger than'):
        read(f'{served}/b.png')


test_sources_that_are_none = refuses(
    expand,
    ('file:///etc/hostname', 'must be of http or https'),
    ('https://example.org/a.mp4', 'download the video first'),
    (3, 'got int'),
    ('nowhere/*.png', 'no image matches the pattern'),
)


def test_missing_files(folder):
    with pytest.raises(FileNotFoundError, match='did you mean b.png'):
        expand(folder / 'bb.png')
    with pytest.raises(FileNotFoundError, match='folder .*gone does not exist'):
        expand(folder / 'gone/b.png')


def test_empty_folders(folder):
    for name in ('a.PNG', 'b.png'):
        (folder / name).unlink()
    with pytest.raises(ValueError, match=r'has no images among its 1 files') as caught:
        expand(folder)
    assert '1 are in folders below' in str(caught.value)


def test_what_is_no_image(folder, caplog):
    (folder / 'other.jpg').write_bytes(b'no image')
    for source in (folder, f'{folder}/*'):
        assert len(read(source)) == 2
        assert 'skipped: ' in caplog.text and 'other.jpg' in caplog.text
        caplog.clear()
    with pytest.raises(ValueError, match='other.jpg cannot be read as an image of BMP'):
        read([folder / 'other.jpg'])
    content = (folder / 'b.png').read_bytes()
    (folder / 'broken.jpg').write_bytes(content[: len(content) // 2])
    error = 'broken.jpg cannot be read as an image: .*skip_broken=True'
    with pytest.raises(ValueError, match=error):
        read(folder)
    assert len(read(folder, skip_broken=True)) == 2
    assert 'broken.jpg' in caplog.text
    (folder / 'broken.mp4').write_bytes(b'no video')
    with pytest.raises(ValueError, match='cannot read .*broken.mp4 as a video'):
        read(folder / 'broken.mp4')
