"""mmattn data convert classes: images in a folder for each class."""

from pathlib import Path

import pytest
from conversions import run, save
from mmengine.config import Config

from mmattn.cli import data_check
from mmattn.errors import UserError

pytestmark = pytest.mark.usefixtures('empty_folder')


def folders(**splits: str) -> list[str]:
    for split, names in splits.items():
        save(*(f'r/{split}/{name}.jpg' for name in names.split()))
    return ['classes', 'r']


def test_folders_of_classes(capsys):
    run(*folders(train='cat/1 cat/2 dog/1 log/1', val='cat/3 dog/2', test='dog/9'))
    files = [str(p.relative_to('data/set')) for p in Path('data/set').rglob('*.jpg')]
    assert sorted(files) == [
        'test/dog/9.jpg',
        *('train/cat/1.jpg', 'train/cat/2.jpg', 'train/dog/1.jpg', 'train/log/1.jpg'),
        *('val/cat/3.jpg', 'val/dog/2.jpg'),
    ]
    err = capsys.readouterr().err
    assert 'r/val has no image of log' in err and 'nothing of' not in err
    path = 'data/classifier_ivit_n_set.py'
    cfg = Config.fromfile(path)
    assert cfg.metainfo.classes == ('cat', 'dog', 'log') and cfg.size == 64
    assert cfg.test_dataloader.dataset.data_prefix == 'test'
    assert data_check.main([path, '--decode', '--num-workers', '0']) == 0
    merge = ['--merge', 'animal=cat,dog', '--classes', 'animal', '--val', '0.5']
    run('classes', 'r', *merge)
    files = [str(p.relative_to('data/set')) for p in Path('data/set').rglob('*.jpg')]
    assert len(files) == 6 and 'test/animal/dog/9.jpg' in files
    run('classes', 'r', '--val-images', 'dog*')
    assert 'train has nothing of dog, unlike val and test' in capsys.readouterr().err


def test_folders_of_an_archive_and_of_a_system():
    """An archive has a folder around all; a notebook and a Mac leave others there."""
    names = 'cat/1 cat/2 dog/1 dog/2 dog/3 .ipynb_checkpoints/1'
    save('r/x/cat/1.png')
    run(*folders(x=names, __MACOSX='x/1'))
    assert {p.name for p in Path('data/set/train').iterdir()} == {'cat', 'dog'}


@pytest.mark.parametrize(
    'train, test', [('seg_train', 'seg_test'), ('training_set', 'test_set')]
)
def test_splits_of_other_names_are_no_classes(train, test):
    """A folder inside has its name, as in Kaggle's Intel images, and cats and dogs."""
    names = {f'{name}/{name}': 'cat/1 cat/2 dog/1 dog/2' for name in (train, test)}
    run(*folders(**names), '--val', '0.5')
    found = {p.parent for p in Path('data/set').rglob('*.jpg')}
    assert {p.parts[2] for p in found} == {'train', 'val', 'test'}
    assert {p.name for p in found} == {'cat', 'dog'}


@pytest.mark.parametrize('args', [['--merge', 'cat=cat,Cat'], ['--classes', 'cat dog']])
def test_classes_of_validation_alone_are_merged_or_left_out(args):
    """A folder may be written otherwise, or hold images of no class."""
    run(*folders(train='cat/1 dog/1', val='Cat/2 cat/3 dog/2'), *' '.join(args).split())
    found = {str(p.relative_to('data/set')) for p in Path('data/set/val').rglob('*.*')}
    merged = {'val/cat/Cat/2.jpg'} if '--merge' in args else set()
    assert found == {'val/cat/3.jpg', 'val/dog/2.jpg'} | merged


@pytest.mark.parametrize(
    'splits, args, message',
    [
        (dict(train='cat/1', val='cat/2'), [], 'must have a folder of images for each'),
        (dict(train='a/1 b/1', val='a/2 c/1'), [], 'r/train has no class c, which ano'),
        (dict(train='a/1 b/1'), ['--tile', '9'], '--tile is not for the classes'),
        (
            dict(train='a/1 b/1'),
            ['--classes', 'x'],
            'must name some of the classes a, ',
        ),
    ],
    ids=['one', 'more', 'tile', 'unknown'],
)
def test_folders_that_cannot_be_meant(splits, args, message):
    with pytest.raises(UserError, match=message):
        run(*folders(**splits), *args)
