from pathlib import Path

import pytest
from tool_runs import tool, toys, work  # noqa: F401  fixtures


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with five images and masks of two objects that touch."""
    import cv2
    import numpy as np
    from conversions import MASK, draw

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for kind in ('images', 'masks'):
        Path(kind).mkdir()
    for index in range(5):
        image = rng.integers(0, 256, (*MASK, 3), np.uint8)
        mask = draw([(5, 10, 10, 8, 1), (5, 18, 10, 8 + index, 7)])
        cv2.imwrite(f'images/{index}.png', image)
        cv2.imwrite(f'masks/{index}.png', mask)
    return tmp_path
