"""tools/datasets: packages of the right hash, and data sets that are written whole."""

import hashlib
from pathlib import Path

import pytest

from mmattn.files.folders import stage
from tools.datasets import package_data, toy

CONTENT = b'a wheel'
PACKAGE = package_data.Package(
    name='some-package',
    version='1.0',
    filename='some_package-1.0-py3-none-any.whl',
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    license='none',
)


@pytest.fixture
def index(monkeypatch):
    """Replaces pip by a list of file contents that it serves one after the other."""
    served = []

    def download(package, folder):
        (Path(folder) / package.filename).write_bytes(served.pop(0))

    monkeypatch.setattr(package_data, '_pip_download', download)
    return served


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupt_at(monkeypatch, module, calls: int) -> None:
    """Makes the `calls`-th image that `module` writes raise KeyboardInterrupt."""
    write, seen = module.write_image, []

    def interrupted(path, image):
        seen.append(path)
        if len(seen) == calls:
            raise KeyboardInterrupt
        write(path, image)

    monkeypatch.setattr(module, 'write_image', interrupted)


def test_fetch_verifies_and_reuses(tmp_path, index):
    (tmp_path / PACKAGE.filename).write_bytes(CONTENT[:3])  # damaged
    index.append(CONTENT)
    wheel = package_data.fetch(PACKAGE, tmp_path)
    assert wheel.read_bytes() == CONTENT
    assert package_data.fetch(PACKAGE, tmp_path) == wheel  # pip has no other
    assert entries(tmp_path) == [PACKAGE.filename]


def test_fetch_refuses_another_hash(tmp_path, index):
    index.append(b'another wheel')
    with pytest.raises(ValueError, match='some-package==1.0: the SHA-256'):
        package_data.fetch(PACKAGE, tmp_path)
    assert entries(tmp_path) == []


def test_interrupted_build_leaves_nothing(tmp_path, monkeypatch, capsys):
    args = ['coco', '--out', str(tmp_path / 'coco')]
    with monkeypatch.context() as patch:
        interrupt_at(patch, toy, calls=3)
        with pytest.raises(KeyboardInterrupt):
            toy.main(args)
    assert entries(tmp_path) == []

    toy.main(args)
    assert entries(tmp_path) == ['coco']
    before = entries(tmp_path / 'coco' / 'val2017')
    toy.main(args)
    assert 'is complete' in capsys.readouterr().out

    with monkeypatch.context() as patch:
        interrupt_at(patch, toy, calls=3)
        with pytest.raises(KeyboardInterrupt):
            toy.main([*args, '--force', '--num-images', '2'])
    assert entries(tmp_path) == ['coco']
    assert entries(tmp_path / 'coco' / 'val2017') == before

    with pytest.raises(ValueError, match='--force'):
        toy.main([*args, '--num-images', '2'])
    toy.main([*args, '--force', '--num-images', '2'])
    assert len(entries(tmp_path / 'coco' / 'val2017')) == 2
    assert entries(tmp_path) == ['coco']


def test_failed_exchange_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / 'data'
    target.mkdir()
    (target / 'old').touch()
    rename = Path.rename

    def refuse_new(self, other):
        if self.suffix == '.partial':
            raise OSError('no space')
        return rename(self, other)

    monkeypatch.setattr(Path, 'rename', refuse_new)
    with pytest.raises(OSError, match='no space'):
        with stage(target) as folder:
            (folder / 'new').touch()
    assert entries(target) == ['old'] and entries(tmp_path) == ['data']


def test_build_keeps_a_foreign_folder(tmp_path):
    (tmp_path / 'photo.jpg').write_bytes(b'mine')
    with pytest.raises(ValueError, match='not written by this tool'):
        toy.main(['coco', '--out', str(tmp_path), '--force'])
    assert entries(tmp_path) == ['photo.jpg']
