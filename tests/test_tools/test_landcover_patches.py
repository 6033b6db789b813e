"""tools/datasets/landcover_patches.py: which patches are taken, and their layout."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tools.datasets import landcover_patches as patches

SIZE = patches.TILE
ALL = 11 * 11  # patches of a tile of one class


def corners(folder: Path) -> list[tuple[int, int]]:
    """Return the corners of the patches in a folder, from their names."""
    names = sorted(path.stem for path in folder.iterdir())
    return [(int(name[7:11]), int(name[13:17])) for name in names]


@pytest.mark.parametrize(
    'rows, found',
    [(23, [(12, 0, 0)]), (22, []), (0, [(0, 0, 0)])],
    ids=['72%', '69%', 'another-class'],
)
def test_a_class_covers_a_patch_by_its_share(monkeypatch, rows, found):
    monkeypatch.setattr(patches, 'TILE', 32)
    tile = np.zeros((32, 32), np.uint8)
    tile[:rows] = 12
    assert list(patches.patches(tile)) == found


def test_patches_overlap_by_half_within_a_tile():
    found = list(patches.patches(np.full((SIZE, SIZE), 12, np.uint8)))
    assert len(found) == ALL
    ys, xs = {y for _, y, _ in found}, {x for _, _, x in found}
    assert ys == xs == set(range(0, SIZE - 31, 16))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two rows of six tiles; the color of a pixel tells its class.

    Tiles (0, 0), (0, 5) and (1, 3) are for validation. Grassland and cropland are in
    both splits; barren in training only, evergreen broadleaf forest in one patch.
    """
    monkeypatch.setattr(patches, 'MOST', {'train': 4 * ALL, 'val': ALL - 21})
    labels = np.zeros((2 * SIZE, 6 * SIZE), np.uint8)
    labels[:SIZE] = 10
    labels[SIZE:] = 12
    labels[:SIZE, SIZE : 2 * SIZE] = 16
    labels[:32, :32] = 2
    image = np.stack([labels * 12, 255 - labels * 12, labels * 5], axis=2)
    counts = patches.convert_maps(image, labels, tmp_path)
    assert counts == {'train': 4 * ALL + 3 * ALL, 'val': 2 * (ALL - 21)}
    return tmp_path


def test_layout_and_content(folder):
    for split in ('train', 'val'):
        assert sorted(p.name for p in (folder / split).iterdir()) == [
            'cropland',
            'grassland',
        ]
    assert len(corners(folder / 'val/cropland')) == ALL - 21
    assert len(corners(folder / 'train/grassland')) == 3 * ALL
    patch = cv2.imread(str(next((folder / 'val/cropland').iterdir())))
    assert patch.shape == (32, 32, 3)
    assert (patch == (144, 111, 60)).all()


def test_splits_never_share_a_tile(folder):
    tiles = {
        split: {
            (y // SIZE, x // SIZE)
            for name in ('cropland', 'grassland')
            for y, x in corners(folder / split / name)
            if y % SIZE <= SIZE - 32 and x % SIZE <= SIZE - 32
        }
        for split in ('train', 'val')
    }
    assert tiles['val'] == {(0, 0), (0, 5), (1, 3)}
    assert tiles['train'] == {(0, 2), (0, 3), (0, 4)} | {
        (1, x) for x in (0, 1, 2, 4, 5)
    }
    patches_kept = sum(
        len(corners(folder / split / name))
        for split in ('train', 'val')
        for name in ('cropland', 'grassland')
    )
    assert patches_kept == 7 * ALL + 2 * (ALL - 21)


def test_the_baseline_learns_colors(folder):
    features, labels = patches.load_split(folder, 'val')
    assert features.shape == (2 * (ALL - 21), 6)
    np.testing.assert_allclose(features[0], (144, 111, 60, 0, 0, 0))
    assert set(labels) == {0, 1}
    assert patches.baseline(folder, trees=5) > 99
