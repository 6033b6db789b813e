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
