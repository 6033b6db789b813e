"""Metadata of files, which may come from anywhere."""

import json
from dataclasses import replace

import pytest

from mmattn.export.metadata import MAX_TEXT, Metadata

RESIZE = dict(scale=[96, 64], keep_ratio=True, interpolation='bilinear', backend='cv2')
FACTOR = dict(factor=0.5, interpolation='bilinear', backend='cv2')
EDGE = dict(short_side=64, interpolation='bicubic', backend='pillow')


def described(**changes):
    """Return the JSON of valid metadata with changes."""
    valid = Metadata('detection', ['image', 'image_size'], ['dets', 'labels'], [64, 96])
    return json.dumps(json.loads(valid.to_json()) | changes)


@pytest.mark.parametrize(
    'changes',
    [
        dict(resize=RESIZE, crop=[1, 2], batch=3, dynamic='size'),
        dict(resize=RESIZE | dict(scale=[99999, 640])),
        dict(resize=FACTOR),
        dict(resize=EDGE, classes=['a'], palette=[[0, 128, 255]], std=[1, 2, 0.5]),
        dict(pad=dict(divisor=32, value=-1.5), mask_threshold=1),
        dict(of_a_newer_version={}),
    ],
    ids=str,
)
def test_valid(changes):
    found = json.loads(Metadata.from_json(described(**changes)).to_json())
    changes.pop('of_a_newer_version', None)
    assert found == json.loads(described(**changes))


# The bounds of sides and numbers, and each type that JSON has, where another is due.
INVALID = {
    'task': ['dancing', None, ['detection'], 3],
    'inputs': ['image', [], ['image', 'size'], [1], {}, None],
    'outputs': ['dets', [], [1], {}, None],
    'shape': [[64], [64, 96, 3], [0, 96], [-64, 96], [64.0, 96], ['64', 96], 64, None],
    'batch': [0, -1, 1.0, True, '1', None],
    'dynamic': ['height', True, 0, ['size']],
    'least': [[0, 5], [5], 5, 'no'],
    'mean': [[1, 2], [1, 2, '3'], [1, 2, 1e300], [1, 2, 10**400], 5, None],
    'std': [[1, 2, 0], [1, 2, -3], [1, 2, None], 'abc', None],
    'channel_order': ['gbr', None, 1],
    'normalized': [1, 'yes', None],
    'input_dtype': ['float64', 'O', None],
    'resize': [
        {},
        [96, 64],
        RESIZE | dict(scale=[96]),
        RESIZE | dict(scale=[96, 2**20 + 1]),
        RESIZE | dict(keep_ratio=1),
        RESIZE | dict(interpolation=None),
        RESIZE | dict(short_side=3),
        EDGE | dict(short_side=0),
        FACTOR | dict(factor=0),
        EDGE | dict(backend=[]),
    ],
    'crop': [[0, 5], [5], 5, [5, '5'], [5, -5]],
    'pad': [{}, dict(divisor=0, value=0), dict(divisor=1, value=[0]), 8, None],
    'classes': ['cat', [1], {}, True],
    'palette': [[[0, 0]], [[0, 0, 256]], [[0, 0, -1]], [0, 0, 0], 'red'],
    'align_corners': [0, None, 'no'],
    'mask_threshold': [-1, 1.5, '0.5', False],
    'version': [1, None],
    'config': [1, []],
    'checkpoint_sha256': [0, {}],
}


def test_invalid():
    for name, value in [(key, value) for key in INVALID for value in INVALID[key]]:
        with pytest.raises(ValueError, match=f'`{name}` of the metadata must be '):
            Metadata.from_json(described(**{name: value}))
            pytest.fail(f'{name}: {value!r} passed')


def test_missing():
    """Without its `mean`, a model would run with another normalization."""
    values = json.loads(described())
    assert set(INVALID) == set(values), 'every attribute is checked'
    for name in values:
        others = {key: value for key, value in values.items() if key != name}
        match = rf"must have the keys \['{name}'\]; export"
        with pytest.raises(ValueError, match=match):
            Metadata.from_json(json.dumps(others))


SHAPES = [
    ('classification', (1, 3), True),
    ('classification', ('batch', None), True),
    ('classification', (1, 4), False),
    ('classification', (1, 1), False),
    ('segmentation', (1, 2, 64, 96), False),
    ('segmentation', (1, 1, 64, 96), True),
    ('segmentation', (1, 64, 96), True),
    ('detection', (1, 100, 5), True),
    ('features', (1, 32, 16, 24), True),
]


def test_channels_of_classes():
    for task, shape, fits in SHAPES:
        metadata = Metadata(task, ['image'], ['out'], [64, 96], classes=['a', 'b', 'c'])
        replace(metadata, classes=None).check_classes(shape)
        if fits:
            metadata.check_classes(shape)
            continue
        with pytest.raises(ValueError, match=f'of the {shape[1]} .*, got 3 names'):
            metadata.check_classes(shape)


@pytest.mark.parametrize('number', ['NaN', '1e999'])
def test_numbers_that_are_not_finite(number):
    text = described(pad=dict(divisor=1, value='here')).replace('"here"', number)
    with pytest.raises(ValueError, match='`pad` of the metadata'):
        Metadata.from_json(text)


def test_more_pixels_than_memory():
    with pytest.raises(ValueError, match='a batch would have 536870912 pixels'):
        Metadata.from_json(described(shape=[2**14, 2**14], batch=2))


@pytest.mark.parametrize(
    'text', ['', '[1]', '{"task": ', '[' * 10**5], ids=lambda text: repr(text[:9])
)
def test_what_is_no_description(text):
    with pytest.raises(ValueError, match='must be an object written by mmattn') as info:
        Metadata.from_json(text)
    assert len(str(info.value)) < 200


def test_long_texts():
    with pytest.raises(ValueError, match='at most 16777216 characters'):
        Metadata.from_json(' ' * (MAX_TEXT + 1))
