"""ImageNetV2 on imitations of the published folders, whole and damaged."""

from pathlib import Path

import pytest

for name in ('mmpretrain', 'cv2'):
    pytest.importorskip(name)


from mmattn.evaluation import ImageNetV2, imagenet_v2  # noqa: E402

FOLDER = 'imagenetv2-matched-frequency-format-val'


@pytest.fixture
def few_classes(monkeypatch):
    monkeypatch.setattr(imagenet_v2, 'NUM_CLASSES', 12)


def make(root, classes, folder=FOLDER):
    for label in classes:
        path = root / folder / str(label)
        path.mkdir(parents=True)
        for name in ('b.jpeg', 'a.jpeg'):
            (path / name).touch()
    return root / folder


def labels(dataset):
    return [dataset.get_data_info(i)['gt_label'] for i in range(len(dataset))]


def test_labels_are_the_names_of_the_folders(tmp_path):
    """In alphabetical order, folder 10 would come before folder 2."""
    make(tmp_path, range(1000))
    dataset = ImageNetV2(str(tmp_path), test_mode=True)
    assert labels(dataset) == [label for label in range(1000) for _ in 'ab']
    for index in range(0, 2000, 499):
        path = Path(dataset.get_data_info(index)['img_path'])
        assert path.parent.name == str(index // 2) and path.is_file()
        assert path.name == 'ab'[index % 2] + '.jpeg'
    assert dataset.metainfo['classes'][:2] == ImageNetV2.METAINFO['classes'][:2]
    assert len(dataset.metainfo['classes']) == 1000


def test_other_files_are_skipped(tmp_path, few_classes):
    folder = make(tmp_path, range(12))
    (folder / '0/notes.txt').touch()
    (folder / 'README').touch()
    assert len(ImageNetV2(str(tmp_path))) == 24


def test_splits_and_folders_of_other_names(tmp_path, few_classes):
    make(tmp_path, range(12), 'imagenetv2-top-images-format-val')
    make(tmp_path, range(12), 'mine')
    dataset = ImageNetV2(str(tmp_path), split='top-images')
    assert 'top-images-format-val' in dataset.get_data_info(0)['img_path']
    assert len(ImageNetV2(str(tmp_path), data_prefix='mine')) == 24


@pytest.mark.parametrize(
    'other_name, message',
    [
        (None, r'no image of 1 of 12 classes, such as \[7\]'),
        ('n01440764', r"indices 0 to 11, got \['n01440764'\]"),
    ],
    ids=['empty', 'name'],
)
def test_a_damaged_folder_is_refused(tmp_path, few_classes, other_name, message):
    folder = make(tmp_path, range(12)) / '7'
    for path in folder.iterdir():
        path.unlink()
    if other_name:
        folder.rename(folder.with_name(other_name))
    with pytest.raises(ValueError, match=message):
        ImageNetV2(str(tmp_path))


def test_a_missing_folder_and_an_unknown_split_are_refused(tmp_path):
    with pytest.raises(ValueError, match=f'no folder {tmp_path}.*{FOLDER}'):
        ImageNetV2(str(tmp_path))
    with pytest.raises(ValueError, match="split must be one of .*, got 'val'"):
        ImageNetV2(str(tmp_path), split='val')
