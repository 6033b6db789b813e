"""tools/datasets/fashion_mnist.py: Debian packages, idx files, linear classifier."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from idx_files import idx

from tools.datasets import fashion_mnist, package_data


def tar(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode='w:xz') as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f'./{name}')
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def ar(members: dict[str, bytes]) -> bytes:
    """Pack members as `ar` does: a header of 60 bytes each, data to even lengths."""
    packed = b'!<arch>\n'
    for name, data in members.items():
        fields = f'{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n'
        packed += fields.encode() + data + b'\n' * (len(data) % 2)
    return packed


@pytest.fixture
def images():
    """Return images whose class is the column of their bright pixel."""
    labels = np.arange(20) % 10
    images = np.zeros((20, 28, 28), dtype=np.uint8)
    images[np.arange(20), 3, labels] = 255
    return images, labels


@pytest.fixture
def package(tmp_path, images, monkeypatch):
    """Put a small package into the cache, which the tool takes for the real one."""
    arrays = {'train': images, 'test': tuple(part[:10] for part in images)}
    files = {
        f'{fashion_mnist.RESOURCES}/{name}.gz': gzip.compress(idx(array))
        for split, names in fashion_mnist.FILES.items()
        for name, array in zip(names, arrays[split], strict=True)
    }
    # The first member has an odd length, which a reader must round up.
    packed = ar({'debian-binary': b'2.0', 'data.tar.xz': tar(files)})
    small = replace(
        fashion_mnist.PACKAGE,
        sha256=hashlib.sha256(packed).hexdigest(),
        filename='a.deb',
    )
    monkeypatch.setattr(fashion_mnist, 'PACKAGE', small)
    (tmp_path / 'a.deb').write_bytes(packed)
    return tmp_path


def make(folder, *args) -> None:
    fashion_mnist.main(['--out', str(folder / 'data'), '--cache', str(folder), *args])


def test_files_are_written_and_classified(package, images, capsys):
    out = package / 'linear.json'
    make(package, '--baseline', str(out))
    assert "{'train': 20, 'test': 10}" in capsys.readouterr().out
    read = fashion_mnist.load_split(package / 'data', 'train')
    assert all((a == b).all() for a, b in zip(read, images, strict=True))
    assert json.loads(out.read_text())['metrics'] == {'accuracy/top1': 100.0}


def test_mmpretrain_reads_the_files(package):
    from mmpretrain import datasets

    make(package)
    root = str(package / 'data')
    train = datasets.FashionMNIST(data_root=root, download=False, indices=7)
    test = datasets.FashionMNIST(
        data_root=root, split='test', test_mode=True, download=False
    )
    assert (len(train), len(test)) == (7, 10)
    assert train.get_data_info(6)['gt_label'] == 6
    assert train.get_data_info(6)['img'].shape == (28, 28)


@pytest.mark.parametrize(
    'packed, message',
    [
        (b'a zip', 'not a package of Debian'),
        (ar({'debian-binary': b'2.0\n'}), 'not a package of Debian'),
        (ar({'data.tar.xz': tar({'other': b''})}), 'holds no a/file'),
    ],
    ids=['other', 'no-data', 'no-file'],
)
def test_other_packages_are_refused(tmp_path, packed, message):
    (tmp_path / 'a.deb').write_bytes(packed)
    with pytest.raises(ValueError, match=message):
        package_data.read_deb(tmp_path / 'a.deb', ['a/file'])


@pytest.mark.parametrize(
    'content, message',
    [
        (b'', 'not an idx file'),
        (idx(np.zeros(4)), 'not an idx file of 3'),
        (idx(np.zeros((2, 3, 3)))[:-1], r'has 17 values, not \[2, 3, 3\]'),
    ],
    ids=['empty', 'labels', 'cut'],
)
def test_damaged_idx_files_are_refused(tmp_path, content, message):
    (tmp_path / 'file').write_bytes(content)
    with pytest.raises(ValueError, match=message):
        fashion_mnist.read_idx(tmp_path / 'file', fashion_mnist.IMAGES)
