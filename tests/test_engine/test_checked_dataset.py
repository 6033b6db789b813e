"""Samples that cannot be used name their files; those that can cost little more."""

import io
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from bad_data import (
    ADE_IMAGE,
    ADE_MAP,
    COCO_IMAGE,
    DATASETS,
    IMAGENET_IMAGE,
    Model,
    cut,
    edit_map,
    load_all,
)
from PIL import Image

from mmattn.engine.data.checked_dataset import DataError
from mmattn.engine.data.image_files import check_image_file

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encode(name, picture=PICTURE, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, name, **options)
    return file.getvalue()


# EXIF that ends in a whole JPEG, so its end marker is early in the file.
THUMBNAIL = b'Exif\x00\x00' + encode('JPEG', PICTURE[::4, ::4])


@pytest.mark.parametrize('name, share', [('JPEG', 0.01), ('JPEG', 0.99), ('PNG', 0.9)])
@pytest.mark.parametrize('exif', [b'', THUMBNAIL], ids=['plain', 'thumbnail'])
def test_a_file_that_breaks_off_is_refused_until_it_is_repaired(
    tmp_path, name, share, exif
):
    path = tmp_path / 'image'
    content = encode(name, exif=exif)
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=f'^{path} is a truncated {name} file: '):
        check_image_file(str(path))
    for end in (b'', b'\r\n', b'trailer' * 50):
        path.write_bytes(content + end)
        check_image_file(str(path))


def out_of_range(labels):
    labels[3, 4] = 151
    return labels


def write(text: str):
    return lambda path: Path(path).write_text(text)


def edit(change):
    return lambda _: edit_map(change)


OUTSIDE = '150, but there are 150 classes, 0 to 149, with reduce_zero_label=True; ign'
SHAPE, SIZES = 'has the shape (120, ', ', but its image has (120, 160)'
# Scope, file, how it is changed, and the error.
SAMPLES = [
    ('mmdet', COCO_IMAGE, write(''), 'is an empty file'),
    ('mmdet', COCO_IMAGE, write('<html>404'), 'cannot be read as an image of BMP, GIF'),
    ('mmpretrain', IMAGENET_IMAGE, cut, 'is a truncated JPEG file'),
    ('mmseg', ADE_MAP, cut, 'is a truncated PNG file'),
    ('mmseg', ADE_MAP, edit(out_of_range), f'has the label {OUTSIDE}'),
    ('mmseg', ADE_MAP, edit(lambda labels: labels[:, 1:]), f'{SHAPE}159){SIZES}'),
    ('mmseg', ADE_MAP, edit(lambda x: np.stack([x] * 3, -1)), f'{SHAPE}160, 3){SIZES}'),
]


@pytest.mark.parametrize(('scope', 'path', 'change', 'message'), SAMPLES)
def test_a_bad_sample_is_named(here, scope, path, change, message):
    change(path)
    message = re.escape(f'{path} {message}')
    start = f'sample 0 of {DATASETS[scope]["type"]}: '
    with pytest.raises(DataError, match=f'^{start}{message}'):
        load_all(DATASETS[scope], scope=scope)


def test_a_photo_that_is_turned_is_named_with_both_sizes(here):
    """Viewers, OpenCV and training turn it; annotations of other tools may not."""
    with Image.open(COCO_IMAGE) as image:
        width, height = image.size
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(COCO_IMAGE, exif=exif)
    message = (
        f'{COCO_IMAGE} has {width} x {height} .* annotations say {height} x {width}'
    )
    with pytest.raises(DataError, match=message):
        load_all(DATASETS['mmdet'])


def fail(data):
    raise KeyError('gt_missing')


def test_any_error_of_a_transform_names_the_files_and_the_cause(here):
    dataset = DATASETS['mmseg']
    dataset = {**dataset, 'pipeline': [fail, *dataset['pipeline']]}
    message = f"sample 0 of ADE20KDataset, {ADE_IMAGE} and {ADE_MAP}: KeyError: '"
    with pytest.raises(DataError, match=f'^{re.escape(message)}') as raised:
        load_all(dataset, scope='mmseg')
    assert isinstance(raised.value.__cause__, KeyError)


def test_the_right_file_is_named_inside_wrappers(here):
    cut(COCO_IMAGE)
    good = {**DATASETS['mmdet'], 'indices': [1, 2, 3]}
    dataset = dict(type='ConcatDataset', datasets=[good, DATASETS['mmdet']])
    message = f'sample 0 of CocoDataset: {COCO_IMAGE} is a truncated'
    with pytest.raises(DataError, match=message):
        load_all(dataset)


def test_images_that_the_config_wants_skipped_are_skipped(here):
    Path(COCO_IMAGE).write_bytes(b'')
    load, *rest = DATASETS['mmdet']['pipeline']
    pipeline = [{**load, 'ignore_empty': True}, *rest]
    assert len(load_all({**DATASETS['mmdet'], 'pipeline': pipeline})) == 4


@pytest.mark.parametrize(
    ('heads', 'settings', 'label', 'fails'),
    [
        ({}, {}, 100, True),
        ({'decode_head': dict(num_classes=150, ignore_index=100)}, {}, 100, False),
        ({}, dict(ignore_index=100), 100, False),
        ({}, {}, 255, False),
        ({}, {}, 2, True),
        ({}, {}, 1, False),
    ],
)
def test_which_labels_are_in_range(here, heads, settings, label, fails):
    def change(labels):
        labels[:] = 0
        labels[0, 0] = label
        return labels

    edit_map(change)
    one = dict(type='BaseSegDataset', metainfo=dict(classes=('one',)), indices=[0])
    expected = nullcontext()
    if fails:
        expected = pytest.raises(DataError, match=f'has the label {label}, but')
    with expected:
        load_all(
            DATASETS['mmseg'] | one | settings, scope='mmseg', model=Model(**heads)
        )
