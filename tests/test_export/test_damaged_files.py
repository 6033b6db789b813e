"""Files that are damaged, or made to do harm, are refused with a ValueError."""

import json
import pickle
import warnings
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import onnx
import pytest
import torch
from small_files import FEATURES, RESIZE, SCORES, noise, write
from torch import nn

from mmattn.apis import Predictor
from mmattn.export import load
from mmattn.export.metadata import KEY, PT2_FILE, Metadata
from mmattn.export.runner import Runner

onnxruntime = pytest.importorskip('onnxruntime')


@pytest.fixture
def onnx_file(tmp_path):
    return write(tmp_path / 'model.onnx', SCORES, 'classification', dynamic='batch')


class Logits(nn.Module):
    def forward(self, image):
        return (image.log(),)


class Labels(nn.Module):
    def forward(self, image):
        return (image.argmax(1),)


@pytest.fixture(scope='module')
def program_file(tmp_path_factory):
    described = Metadata('segmentation', ['image'], ['labels'], [64, 96])
    program = torch.export.export(Labels(), (torch.rand(1, 3, 64, 96),))
    path = tmp_path_factory.mktemp('program') / 'model.pt2'
    torch.export.save(program, path, extra_files={PT2_FILE: described.to_json()})
    return path


def test_programs_without_a_part(program_file, tmp_path):
    """Leave out each entry of the archive, or replace it by other bytes."""
    with ZipFile(program_file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    assert len(entries) > 5
    path, refused = tmp_path / 'changed.pt2', []
    for changed in entries:
        for content in (None, b'{}', b'\x00' * 99):
            with ZipFile(path, 'w') as archive:
                for name, value in (entries | {changed: content}).items():
                    if value is not None:
                        archive.writestr(name, value)
            try:
                load(path, trust_checkpoint=True)(noise(64, 96))
            except ValueError as error:
                refused.append(changed)
                assert str(path) in str(error)
    assert {name.rpartition('/')[2] for name in refused} >= {'model.json', PT2_FILE}


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_programs_that_run_code(program_file, tmp_path):
    """PyTorch unpickles the example inputs; then the payload writes a file."""
    path, written = tmp_path / 'code.pt2', tmp_path / 'written'
    with ZipFile(program_file) as archive, ZipFile(path, 'w') as changed:
        for name in archive.namelist():
            content = archive.read(name)
            if '/sample_inputs/' in name:
                content = pickle.dumps(Payload(written))
            changed.writestr(name, content)
    with pytest.raises(ValueError, match=r'it is refused: .*trust_checkpoint'):
        load(path)
    with pytest.raises(ValueError, match=r'it is refused: .*trust_checkpoint'):
        Predictor(path)
    assert not written.exists()
    with pytest.raises(ValueError, match=r'code\.pt2: torch.export cannot load'):
        load(path, trust_checkpoint=True)
    assert written.exists()
    assert Predictor(program_file, trust_checkpoint=True).task == 'segmentation'


def test_compressed_archives(program_file, tmp_path):
    """A small one could fill the memory."""
    path = tmp_path / 'compressed.pt2'
    with ZipFile(program_file) as archive, ZipFile(path, 'w', ZIP_DEFLATED) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    with pytest.raises(ValueError, match='compressed entries'):
        load(path)


def with_metadata(path, text):
    """Return a copy of a file with other metadata."""
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {KEY: text})
    other = path.with_name('other.onnx')
    onnx.save(model, other)
    return other


@pytest.mark.parametrize('run', [load, Predictor])
@pytest.mark.parametrize(
    'old, new, message',
    [
        ('"mean"', '"means"', r"must have the keys \['mean'\]"),
        ('"mean": [0.0', '"mean": [NaN', '`mean` of the metadata must be numbers'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_damaged_metadata(onnx_file, program_file, tmp_path, run, old, new, message):
    text = Metadata('classification', ['image'], ['scores'], [64, 96]).to_json()
    assert old in text
    text = new.join(text.rsplit(old, 1))
    program = tmp_path / 'other.pt2'
    with ZipFile(program_file) as archive, ZipFile(program, 'w') as changed:
        for name in archive.namelist():
            content = text if name.endswith(PT2_FILE) else archive.read(name)
            changed.writestr(name, content)
    for file in (with_metadata(onnx_file, text), program):
        with pytest.raises(ValueError, match=rf'{file.name}: .*{message}'):
            run(file)


def test_another_number_of_classes(tmp_path):
    classes = ['a', 'b']
    file = write(tmp_path / 'c.onnx', SCORES, 'classification', classes=classes)
    with pytest.raises(ValueError, match=r'c\.onnx: `classes` .* 3 classes of the mod'):
        load(file)
    program = torch.export.export(Logits(), (torch.rand(1, 3, 64, 96),))
    ends = 'segmentation', ['image'], ['logits']
    held = {PT2_FILE: Metadata(*ends, [64, 96], classes=classes).to_json()}
    torch.export.save(program, tmp_path / 'c.pt2', extra_files=held)
    with pytest.raises(ValueError, match=r'c\.pt2: `classes` .* 3 classes of the mode'):
        load(tmp_path / 'c.pt2', trust_checkpoint=True)


@pytest.mark.parametrize('outside', ['../weights', '{}/weights', 'link'])
def test_weights_outside_of_the_folder(tmp_path, outside):
    """ONNX files may name other files as weights, but none elsewhere."""
    np.arange(3, dtype=np.float32).tofile(tmp_path / 'weights')
    (tmp_path / 'model').mkdir()
    (tmp_path / 'model/link').symlink_to('../weights')
    file = write(tmp_path / 'model/m.onnx', SCORES, 'classification')
    model = onnx.load(file)
    weights = model.graph.initializer.add(name='unused', data_type=1, dims=[3])
    model.graph.output.append(onnx.helper.make_tensor_value_info('unused', 1, [3]))
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key='location', value=outside.format(tmp_path))
    file.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match='cannot load .*xternal data'):
        load(file)


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(batch=3), r'has the inputs .*\(1, 3, 64, 96\).*\(3, 3, 64, 96\)'),
        (dict(input_dtype='uint8', normalized=True), 'has the inputs .*tensor.uint8'),
        (dict(inputs=['image', 'image_size']), 'has the inputs .*image_size'),
        (dict(outputs=['labels']), r"has the outputs \['scores'\], and .*\['labels'\]"),
        (dict(resize=RESIZE | dict(interpolation='area')), "got 'area'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_metadata_that_do_not_fit_the_graph(tmp_path, changes, message):
    file = write(tmp_path / 'model.onnx', SCORES.replace('B', '1'), 'classification')
    metadata = json.loads(onnx.load(file).metadata_props[0].value)
    other = with_metadata(file, json.dumps(metadata | changes))
    with pytest.raises(ValueError, match=message):
        load(other)


@pytest.mark.parametrize(
    'given, shape',
    [('[B, 3, 64, 96] picture', 'N, M'), ('[B, 3, 64, 96, 2] image', 'N, M, K')],
    ids=['name', 'rank'],
)
def test_graphs_of_another_input(tmp_path, given, shape):
    text = SCORES.replace('[B, 3, 64, 96] image', given).replace('[2, 3]', '[-2, -1]')
    text = text.replace('(image, axes)', f'({given.split()[-1]}, axes)')
    text = text.replace('[B, 3] scores', f'[{shape}] scores')
    with pytest.raises(ValueError, match=r'm\.onnx: it has the inputs '):
        load(write(tmp_path / 'm.onnx', text, 'classification'))


@pytest.mark.parametrize(
    'changes',
    [
        dict(resize=RESIZE | dict(scale=[2**20, 1], keep_ratio=False)),
        dict(resize=dict(short_side=2**20, interpolation='bilinear', backend='cv2')),
        dict(pad=dict(divisor=2**20, value=0)),
    ],
    ids=str,
)
def test_images_that_would_fill_the_memory(tmp_path, changes):
    settings = dict(dynamic='size') | changes
    runner = load(write(tmp_path / 'f.onnx', FEATURES, 'features', **settings))
    with pytest.raises(ValueError, match='pixels; at most 268435456 are supported'):
        runner(noise(500, 700))


def runner(task, *outputs, **settings):
    """Return a runner whose graph returns the same for all images."""
    inputs = ['image', 'image_size'] if task == 'detection' else ['image']
    names = [f'output{i}' for i in range(len(outputs))]
    names = settings.pop('outputs', names)
    metadata = Metadata(task, inputs, names, [64, 96], **settings)
    return Runner(lambda *_: [np.asarray(out) for out in outputs], metadata)


DETS = np.array([[[1, 2, 30, 40, 0.9]]], np.float32)


@pytest.mark.parametrize(
    'task, outputs',
    [
        ('detection', [DETS]),
        ('detection', [DETS, np.zeros((1, 2), int)]),
        ('detection', [DETS, np.zeros((1, 1), int), np.zeros((1, 28, 28))]),
        ('detection', [DETS, np.zeros((1, 1), int), np.zeros((1, 2, 28, 28))]),
        ('detection', [DETS.repeat(2, 0), np.zeros((2, 1), int)]),
        ('segmentation', [np.zeros((1, 5, 32, 48))]),
        ('classification', [np.zeros(5)]),
        ('features', [np.float32(3)]),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else str([x.shape for x in value])
    ),
)
def test_outputs_of_other_shapes(task, outputs):
    with pytest.raises(ValueError, match='do not fit images of shape .1, 3, 64, 96.'):
        runner(task, *outputs)(noise(64, 96))


@pytest.mark.parametrize(
    'task, outputs, label, classes',
    [
        ('detection', [DETS, np.full((1, 1), 1)], 1, ['a']),
        ('segmentation', [np.full((1, 64, 96), 2)], 2, ['a', 'b']),
        ('detection', [DETS, np.full((1, 1), 2**16)], 2**16, None),
        ('segmentation', [np.full((1, 64, 96), -1)], -1, None),
    ],
)
def test_labels_without_a_class(task, outputs, label, classes):
    names = f'has {len(classes)} names' if classes else 'names labels are 0 to 65535'
    with pytest.raises(ValueError, match=f'the label {label}, and `classes` .*{names}'):
        runner(task, *outputs, classes=classes)(noise(64, 96))
    last = np.full_like(outputs[-1], len(classes or range(2**16)) - 1)
    runner(task, *outputs[:-1], last, classes=classes)(noise(64, 96))


def test_one_channel_decides_between_two_classes():
    labels = np.arange(64 * 96).reshape(1, 64, 96) % 2
    found = runner('segmentation', labels, classes=['a'])(noise(64, 96))
    np.testing.assert_array_equal(found.labels, labels[0])
    with pytest.raises(ValueError, match='the label 2, and `classes`'):
        runner('segmentation', labels + 1, classes=['a'])(noise(64, 96))


def test_fewer_outputs_than_described():
    found = runner('features', np.zeros((1, 2)), outputs=['a', 'b'])
    with pytest.raises(ValueError, match=r"with the outputs \['a', 'b'\]"):
        found(noise(64, 96))


def test_classes_without_a_color():
    found = runner('segmentation', np.full((1, 64, 96), 2), palette=[[0, 0, 0]] * 2)
    with pytest.raises(ValueError, match='2 colors, and none for the class 2'):
        found(noise(64, 96)).colors()


def test_boxes_that_are_not_finite():
    values = [np.nan, np.inf, -np.inf, 3e38]
    boxes = [values[i:] + values[:i] for i in range(4)]
    dets = np.array([[*box, 0.9] for box in boxes], np.float32)[None]
    masks = np.ones((1, 4, 28, 28), np.float32)
    with warnings.catch_warnings(), np.errstate(all='ignore'):
        found = runner('detection', dets, np.zeros((1, 4), int), masks)(noise(64, 96))
    assert len(found) == 4 and not found.masks.any()


def test_graphs_that_fail():
    def fails(*_):
        raise IndexError('out of bounds')

    metadata = Metadata('features', ['image'], [], [64, 96])
    with pytest.raises(ValueError, match=r'\(1, 3, 64, 96\): out of bounds'):
        Runner(fails, metadata)(noise(64, 96))


def test_threads(tmp_path):
    file = write(tmp_path / 'f.onnx', FEATURES, 'features')
    with pytest.raises(ValueError, match='`threads` must be positive, got 0'):
        load(file, threads=0)
