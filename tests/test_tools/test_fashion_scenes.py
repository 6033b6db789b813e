"""tools/datasets/fashion_scenes.py: what a scene shows is what its labels say."""

import cv2
import numpy as np
import pytest

from tools.datasets import fashion_scenes as scenes
from tools.datasets import pixel_forest


@pytest.fixture
def photos():
    """Three objects on black: a dark one, a bright one, and a bright ring."""
    photos = np.zeros((3, 28, 28), dtype=np.uint8)
    photos[0, 4:24, 8:20] = 40
    photos[1, 4:24, 8:20] = 250
    cv2.circle(photos[2], (13, 13), 10, 250, 2)
    return photos


@pytest.mark.parametrize('index, sign', [(0, -1), (1, 1)])
def test_labels_are_where_the_object_is_seen(photos, monkeypatch, index, sign):
    photos[photos == 0] = scenes.RIM
    monkeypatch.setattr(scenes, 'GAIN', (1.0, 1.0))
    monkeypatch.setattr(scenes, 'background', lambda rng: np.full((128, 128), 140.0))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        image, labels = scenes.compose(photos[index : index + 1], [7], rng)
        assert image.dtype == labels.dtype == np.uint8
        assert set(np.unique(labels)) == {0, 7}
        assert 0.2 * 20 * 12 < (labels == 7).sum() < 4.1 * 20 * 12
        seen = sign * (image.astype(int) - (195 if index else 90)) > 0
        assert (seen != (labels == 7)).mean() < 0.005
        assert abs(image[labels == 0].mean() - 140) < 0.5


@pytest.fixture
def folder(photos, tmp_path):
    for split, count in {'training': 6, 'validation': 3}.items():
        repeated = photos.repeat(4, 0), np.arange(1, 4).repeat(4)
        scenes.write_scenes(*repeated, tmp_path, split, count)
    found = [labels for *_, labels in pixel_forest.load_split(tmp_path, 'training')]
    assert set(np.unique(found)) == {0, 1, 2, 3}
    return tmp_path


def test_scenes_differ_and_are_written_alike_twice(photos, folder, tmp_path_factory):
    again = tmp_path_factory.mktemp('again')
    scenes.write_scenes(
        photos.repeat(4, 0), np.arange(1, 4).repeat(4), again, 'training', 2
    )
    images = {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob('*.png')
    }
    assert len(set(images.values())) == len(images) == 18
    written = {path.relative_to(again): path for path in again.rglob('*.png')}
    assert len(written) == 4
    assert all(images[name] == path.read_bytes() for name, path in written.items())
