"""Files of exported models, run without the packages that they came from."""

import numpy as np
import onnx
import pytest
import torch
from fresh import run_python
from PIL import Image
from small_files import DETECTOR, FEATURES, RESIZE, SCORES, noise, write
from torch import nn

from mmattn.errors import UserError
from mmattn.export import load
from mmattn.export.metadata import PT2_FILE, Metadata


@pytest.fixture
def detector(tmp_path):
    file, inputs = tmp_path / 'detector.onnx', ('image', 'image_size')
    settings = dict(batch=2, resize=RESIZE, classes=['a'], std=[1e6] * 3)
    return write(file, DETECTOR, 'detection', inputs, **settings)


def test_detectors_run_on_lists_of_any_length(detector, tmp_path):
    Image.fromarray(noise(30, 80)).save(tmp_path / 'c.png')
    images = [noise(128, 100), Image.fromarray(noise(50, 50)), str(tmp_path / 'c.png')]
    found = load(detector, threads=1)(images)
    sizes = [(100, 128), (50, 50), (80, 30)]
    for each, (width, height) in zip(found, sizes, strict=True):
        np.testing.assert_allclose(each.boxes, [[0, 0, width, height]], rtol=1e-6)
        assert each.names == ['a'] and each.masks is None
    alone = load(detector)(images[2])
    np.testing.assert_array_equal(alone.boxes, found[2].boxes)


def test_files_of_other_kinds_are_named():
    with pytest.raises(UserError, match='one of .onnx, .pt2, .xml, got model.pth'):
        load('model.pth')


def test_features_of_any_size(tmp_path):
    settings = dict(dynamic='size', pad=dict(divisor=16, value=0))
    runner = load(write(tmp_path / 'f.onnx', FEATURES, 'features', **settings))
    images = [noise(40, 64), noise(16, 90)]
    (first,), (second,) = runner(images)
    assert first.shape == (3, 6, 8) and second.shape == (3, 2, 12)
    expected = images[0][:8, :8].mean((0, 1))
    np.testing.assert_allclose(first[:, 0, 0], expected, rtol=1e-5)


def test_classifiers(tmp_path):
    file = write(tmp_path / 'c.onnx', SCORES, 'classification', dynamic='batch')
    image = noise(64, 96)
    found = load(file)(image)
    np.testing.assert_allclose(found.scores, image.mean((0, 1)), rtol=1e-5)
    assert load(file)([]) == []


class Labels(nn.Module):
    def forward(self, image):
        return (image.argmax(1),)


def test_programs_of_torch(tmp_path):
    described = Metadata('segmentation', ['image'], ['labels'], [64, 96])
    program = torch.export.export(Labels(), (torch.rand(1, 3, 64, 96),))
    file, other = tmp_path / 'model.pt2', tmp_path / 'other.pt2'
    torch.export.save(program, file, extra_files={PT2_FILE: described.to_json()})
    image = noise(50, 96)
    found = load(file, trust_checkpoint=True)(image)
    np.testing.assert_array_equal(found.labels, image.argmax(2))
    with pytest.raises(ValueError, match='are for .onnx files'):
        load(file, threads=1)
    torch.export.save(program, other)
    with pytest.raises(ValueError, match='other.pt2: it has no metadata'):
        load(other)


def test_files_that_cannot_be_run_are_refused(tmp_path, detector):
    other = tmp_path / 'other.onnx'
    model = onnx.load(detector)
    del model.metadata_props[:]
    onnx.save(model, other)
    broken, empty, zipped = (tmp_path / n for n in ('b.onnx', 'e.onnx', 'z.pt2'))
    broken.write_bytes(detector.read_bytes()[:300])
    empty.touch()
    zipped.write_bytes(b'no zip')
    for file in (other, broken, empty, zipped):
        with pytest.raises(ValueError, match=file.name):
            load(file)
    with pytest.raises(ValueError, match='got model.pth'):
        load('model.pth')
    with pytest.raises(FileNotFoundError, match='missing.onnx'):
        load(tmp_path / 'missing.onnx')


WITHOUT = """
import sys
for name in ('torch', 'torchvision', 'mmengine', 'mmcv', 'mmdet', 'onnx'):
    sys.modules[name] = None
import mmattn.export
found = mmattn.export.load(sys.argv[1])(sys.argv[2])
print(found.boxes.round(3).tolist(), found.names)
"""


def test_onnx_files_run_without_the_packages_they_came_from(detector, tmp_path):
    Image.fromarray(noise(128, 100)).save(tmp_path / 'a.png')
    done = run_python('-c', WITHOUT, detector, tmp_path / 'a.png')
    assert done.stdout == "[[0.0, 0.0, 100.0, 128.0]] ['a']\n"
