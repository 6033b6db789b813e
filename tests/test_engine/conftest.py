import shutil

import pytest


@pytest.fixture(scope='session')
def toys(tmp_path_factory):
    from bad_data import make_toys

    folder = tmp_path_factory.mktemp('toys')
    make_toys(folder)
    return folder


@pytest.fixture
def here(toys, tmp_path, monkeypatch):
    """A copy of the toy data sets as the current folder."""
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
