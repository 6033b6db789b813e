"""Files for OpenVINO equal PyTorch, or are not written."""

import sys

import numpy as np
import pytest
import torch
from small_files import noise
from small_models import built, classifier_config
from torch import nn

from mmattn.export import ExportError, Metadata, export_model, load
from mmattn.export.api import export_graph
from mmattn.export.verification import difference
from mmattn.export.writing import FORMATS
from mmattn.models.layers.deformable_attention import DeformableAttention

pytest.importorskip('onnxscript')
pytestmark = pytest.mark.slow
SIZE = 64


@pytest.fixture(scope='module')
def openvino():
    return pytest.importorskip('openvino')


@pytest.fixture(scope='module')
def file(openvino, tmp_path_factory):
    """Return a classifier of uint8 images, of any batch."""
    path = tmp_path_factory.mktemp('openvino') / 'model.xml'
    settings = dict(dynamic='batch', normalize=True, input_dtype='uint8')
    torch.manual_seed(0)
    export_model(classifier_config(), None, path, shape=(SIZE, SIZE), **settings)
    return path


def test_a_file_predicts_as_pytorch(file):
    runner = load(file, threads=1)
    torch.manual_seed(0)
    model = built(classifier_config())
    images = [noise(SIZE, SIZE, seed=i) for i in range(3)]
    batch = torch.stack([torch.from_numpy(x.transpose(2, 0, 1)) for x in images])
    with torch.no_grad():
        mean, std = (
            torch.tensor(x) for x in (runner.metadata.mean, runner.metadata.std)
        )
        scores = model(
            (batch - mean[:, None, None]) / std[:, None, None], mode='tensor'
        )
    (found,) = runner.run(batch.numpy())
    np.testing.assert_allclose(found, scores.softmax(1), rtol=1e-4, atol=1e-6)
    assert runner(images[0]).classes == runner.metadata.classes


def test_metadata_of_any_text(file, openvino):
    """Classes may have quotes, and letters of any language."""
    metadata = load(file).metadata
    assert metadata.task == 'classification' and metadata.dynamic == 'batch'
    assert metadata.classes == [f'class {i}' for i in range(5)]
    metadata.classes = ['"a"', "<b> & 'c'", 'Grüße', '数', '\\n\n']
    model = openvino.Core().read_model(file)
    content = FORMATS['openvino'].content(model, metadata)
    assert FORMATS['openvino'].runner(content).metadata == metadata


class Tokens(nn.Module):
    """A layer of tokens with 32 channels, behind an image."""

    input_names, output_names = ('image',), ('out',)

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.embed, self.layer = nn.Conv2d(3, 32, 4, 4), layer

    def forward(self, image):
        return (self.layer(self.embed(image).permute(0, 2, 3, 1)),)


def exported(layer):
    """Return the largest relative difference of OpenVINO from PyTorch."""
    graph = Tokens(layer).requires_grad_(False).eval()
    metadata = Metadata('features', ['image'], [], [SIZE, SIZE])
    image = torch.randn(1, 3, SIZE, SIZE)
    _, runner = export_graph(graph, metadata, FORMATS['openvino'], [image])
    (found,) = runner.run(image.numpy())
    return difference(torch.from_numpy(found), *graph(image))


def test_deformable_attention_is_right(openvino):
    """OpenVINO overwrote the queries, which the offsets' convolution takes too."""
    torch.manual_seed(0)
    layer = DeformableAttention(32, 1, 1, (16, 16), kernel_size=9, stride=8)
    assert exported(layer) < 1e-5


class SharedQueries(nn.Module):
    """Attention that OpenVINO 2026.4 computes wrongly."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.conv = nn.Conv2d(32, 32, 8, 8)

    def forward(self, x):
        q = self.q(x)
        keys = self.conv(q.permute(0, 3, 1, 2)).flatten(2).mT
        k, v = self.k(keys), self.v(keys)
        return (q.flatten(1, 2) @ k.mT).softmax(-1) @ v


def test_a_wrong_file_is_not_written(openvino):
    torch.manual_seed(0)
    try:
        found = exported(SharedQueries())
    except ExportError as error:
        assert 'out of the exported model differs from PyTorch' in str(error)
    else:  # a version of OpenVINO that is right
        assert found < 1e-3


class Halved(nn.Module):
    input_names, output_names = ('image',), ('map',)

    def __init__(self):
        super().__init__()
        self.register_buffer('weight', torch.full((3, 1, 2, 2), 0.25))

    def forward(self, image):
        return (nn.functional.conv2d(image, self.weight, stride=2, groups=3),)


@pytest.fixture(scope='module')
def small(openvino, tmp_path_factory):
    """Return a file of any size, and its metadata."""
    path = tmp_path_factory.mktemp('small') / 'model.xml'
    metadata = Metadata('features', ['image'], [], [96, 64], dynamic='size')
    content, runner = export_graph(Halved(), metadata, FORMATS['openvino'])
    for file, part in zip(FORMATS['openvino'].files(path), content, strict=True):
        file.write_bytes(part)
    return path, runner.metadata


def test_dynamic_sizes(small):
    file, metadata = small
    runner = load(file)
    assert metadata.least == [32, 32] and runner.metadata == metadata
    image = np.random.default_rng(0).random((2, 3, 128, 40), np.float32)
    (found,) = runner.run(image)
    expected = image.reshape(2, 3, 64, 2, 20, 2).mean((3, 5))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_damaged_files_are_refused(small, tmp_path):
    file, _ = small
    xml, weights = file.read_bytes(), file.with_suffix('.bin').read_bytes()
    path = tmp_path / 'model.xml'
    path.write_bytes(xml)
    with pytest.raises(FileNotFoundError, match=r'model\.bin does not exist'):
        load(path)
    path.with_suffix('.bin').write_bytes(weights[:-8])
    with pytest.raises(ValueError, match=r'model\.xml: OpenVINO cannot load'):
        load(path)
    path.with_suffix('.bin').write_bytes(weights)
    path.write_bytes(xml[:1000])
    with pytest.raises(ValueError, match=r'model\.xml: OpenVINO cannot load'):
        load(path)
    path.write_bytes(xml.replace(b'mmattn', b'mmother'))
    with pytest.raises(ValueError, match='has no metadata of mmattn'):
        load(path)
    with pytest.raises(ValueError, match='`providers` are for .onnx files'):
        load(file, providers=['CPUExecutionProvider'])


def test_files_of_another_suffix(openvino, tmp_path):
    settings = dict(shape=(64, 64), format='openvino')
    with pytest.raises(ValueError, match=r'must end with \.xml, got .*model\.bin'):
        export_model(None, None, tmp_path / 'model.bin', **settings)


def test_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'openvino', None)
    path = tmp_path / 'model.xml'
    with pytest.raises(ImportError, match='pip install openvino'):
        export_model(None, None, path, shape=(64, 64))
    path.touch()
    path.with_suffix('.bin').touch()
    with pytest.raises(ImportError, match='pip install openvino'):
        load(path)
