"""A folder of toy data and small configs, and the tools run in it."""

import shutil
import sys

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
