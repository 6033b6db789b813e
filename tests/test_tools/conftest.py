"""A folder of toy data and small configs, and the tools run in it."""

import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def toys(tmp_path_factory):
    """A folder with toy data."""
    from tools.datasets import toy

    folder = tmp_path_factory.mktemp('toys')
    toy.make_coco(folder / 'data/coco')
    toy.make_imagenet(folder / 'data/imagenet')
    toy.make_ade20k(folder / 'data/ade')
    return folder


@pytest.fixture(scope='module')
def work(toys, tmp_path_factory):
    """A folder with toy data and configs that train on them in seconds."""
    from tool_runs import CONFIGS

    folder = tmp_path_factory.mktemp('work')
    shutil.copytree(toys, folder, dirs_exist_ok=True)
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    return folder


@pytest.fixture
def tool(work, monkeypatch, forget_instances):
    """Runs the `main` of a tool in the work folder, in this process."""
    from tool_runs import load_tool

    from tools.test import with_weights

    monkeypatch.chdir(work)
    monkeypatch.setenv('LOCAL_RANK', '0')

    def call(name: str, *args, patched: dict | None = None):
        forget_instances()
        module = load_tool(name)
        for key, value in (patched or {}).items():
            monkeypatch.setattr(module, key, value)
        args = [*map(str, args)]
        args = with_weights(args) if name == 'test' else args
        monkeypatch.setattr(sys, 'argv', [name, *args])
        monkeypatch.setattr(sys, 'path', sys.path[:])
        return module.main(args)

    return call


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with five images and masks of two objects that touch."""
    import cv2
    import numpy as np
    from masked_images import SIZE, draw

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for kind in ('images', 'masks'):
        Path(kind).mkdir()
    for index in range(5):
        image = rng.integers(0, 256, (*SIZE, 3), np.uint8)
        mask = draw([(5, 10, 10, 8, 1), (5, 18, 10, 8 + index, 7)])
        cv2.imwrite(f'images/{index}.png', image)
        cv2.imwrite(f'masks/{index}.png', mask)
    return tmp_path
