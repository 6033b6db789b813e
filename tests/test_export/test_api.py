"""export_model: files, metadata, checkpoints, and refusals."""

import resource
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmpretrain.structures import DataSample
from small_models import classifier_config
from torch import nn

import mmattn
from mmattn.engine.model import build_model
from mmattn.export import ExportError, Metadata, export_model
from mmattn.export.api import export_graph
from mmattn.export.metadata import KEY, PT2_FILE
from mmattn.export.runner import Runner
from mmattn.export.writing import FORMATS

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')
SHAPE = (37, 50)


@pytest.fixture(scope='module')
def cfg():
    return classifier_config()


@pytest.fixture(scope='module')
def checkpoint(cfg, tmp_path_factory):
    torch.manual_seed(0)
    model, _ = build_model(cfg, None)
    path = tmp_path_factory.mktemp('checkpoint') / 'model.pth'
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


@pytest.fixture(scope='module')
def onnx_file(cfg, checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp('export') / 'model.onnx'
    images = torch.randint(0, 256, (2, 3, *SHAPE)).to(torch.uint8)
    settings = dict(dynamic='batch', normalize=True, input_dtype='uint8')
    export_model(cfg, checkpoint, path, shape=SHAPE, verify=[images], **settings)
    return path


def fake_format(metadata, run, content=b''):
    """Return a format whose file runs a function."""
    return SimpleNamespace(
        files=lambda out: [out],
        convert=lambda *_: None,
        content=lambda *_: [content],
        runner=lambda _: Runner(run, metadata),
    )


def predicted(cfg, checkpoint, images):
    """Return the scores of mmpretrain's own prediction for RGB images."""
    model, _ = build_model(cfg, checkpoint)
    samples = [DataSample() for _ in images]
    data = dict(inputs=list(images.flip(1)), data_samples=samples)  # BGR, as loaded
    with torch.no_grad():
        samples = model.test_step(data)
    return torch.stack([sample.pred_score for sample in samples])


def test_file_predicts_as_mmpretrain(cfg, checkpoint, onnx_file):
    session = onnxruntime.InferenceSession(onnx_file)
    for batch in (1, 3):
        images = torch.randint(0, 256, (batch, 3, *SHAPE)).to(torch.uint8)
        (scores,) = session.run(['scores'], {'image': images.numpy()})
        expected = predicted(cfg, checkpoint, images)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)


def test_metadata(cfg, checkpoint, onnx_file):
    session = onnxruntime.InferenceSession(onnx_file)
    text = session.get_modelmeta().custom_metadata_map[KEY]
    metadata = Metadata.from_json(text)
    assert metadata.task == 'classification'
    assert metadata.inputs == ['image'] and metadata.outputs == ['scores']
    assert metadata.classes == [f'class {i}' for i in range(5)]
    assert metadata.mean == [123, 116, 103] and metadata.std == [58, 57, 56]
    assert metadata.channel_order == 'rgb'
    assert metadata.normalized and metadata.input_dtype == 'uint8'
    assert metadata.shape == [*SHAPE] and metadata.dynamic == 'batch'
    assert metadata.resize['short_side'] == 72 and metadata.crop == [64, 64]
    assert metadata.resize['interpolation'] == 'bicubic'
    assert metadata.version == mmattn.__version__
    assert len(metadata.checkpoint_sha256) == 64


def check_no_path(content: bytes):
    """Check that a file with names of modules has no path of this machine."""
    assert b'backbone' in content
    folders = Path(mmattn.__file__).parents[1], Path(sys.prefix), Path.home()
    for folder in {*folders, *(each.resolve() for each in folders)}:
        assert str(folder).encode() + b'/' not in content
    assert b'.py' not in content


class Pooled(nn.Module):
    task, input_names, output_names = 'features', ('image',), ('map',)

    def __init__(self):
        super().__init__()
        self.backbone = nn.AdaptiveAvgPool2d(3)

    def forward(self, image):
        return (self.backbone(image).relu(),)


def test_files_have_no_path_of_this_machine(onnx_file):
    """Also after PyTorch has decomposed an operator, here the pool."""
    check_no_path(onnx_file.read_bytes())
    metadata = Metadata('features', ['image'], [], [64, 72], dynamic='size')
    for format in ('onnx', 'pt2'):
        content, _ = export_graph(Pooled(), metadata, FORMATS[format])
        check_no_path(content[0])


def test_pt2_file_has_a_json_beside_it(cfg, checkpoint, tmp_path):
    out = tmp_path / 'model.pt2'
    metadata = export_model(
        cfg, checkpoint, out, shape=(32, 32), verify=[torch.randn(1, 3, 32, 32)]
    )
    assert Metadata.from_json((tmp_path / 'model.pt2.json').read_text()) == metadata
    held = {PT2_FILE: ''}
    program = torch.export.load(out, extra_files=held)
    assert Metadata.from_json(held[PT2_FILE]) == metadata
    targets = {str(node.target) for node in program.graph.nodes}
    assert any('mmattn.landmark_attention' in target for target in targets)


BAD = [
    ('.onnx', dict(shape=(3, 64, 64)), 'height and a width'),
    ('.onnx', dict(shape=(0, 64)), r'got \(0, 64\)'),
    ('.onnx', dict(format='tflite'), "got 'tflite'"),
    ('.engine', {}, "got 'engine'"),
    ('.onnx', dict(dynamic='height'), "got 'height'"),
    ('.onnx', dict(part='neck'), "got 'neck'"),
    ('.onnx', dict(batch=0), 'got 0'),
    ('.onnx', dict(output='labels'), 'output is for segmentors'),
    ('.onnx', dict(input_dtype='uint8'), 'requires `normalize`'),
    ('.onnx', dict(input_dtype='int8'), "got 'int8'"),
]


def test_bad_arguments(cfg, checkpoint, tmp_path):
    for suffix, settings, message in BAD:
        settings = dict(shape=(32, 32)) | settings
        with pytest.raises(ValueError, match=message):
            export_model(cfg, checkpoint, tmp_path / f'model{suffix}', **settings)
    assert not list(tmp_path.iterdir())


def test_head_that_predicts_otherwise(tmp_path):
    cfg = classifier_config()
    cfg.model.head.type = 'MultiLabelLinearClsHead'
    with pytest.raises(ExportError, match='MultiLabelLinearClsHead .* as ClsHead of'):
        export_model(cfg, None, tmp_path / 'model.onnx', shape=(32, 32))


def test_classes_of_another_model(checkpoint, tmp_path):
    cfg = classifier_config()
    cfg.test_dataloader.dataset.metainfo.classes = ['a', 'b']
    with pytest.raises(ValueError, match='`classes` .* the 5 classes .*, got 2 names'):
        export_model(cfg, checkpoint, tmp_path / 'model.onnx', shape=(32, 32))
    assert not list(tmp_path.iterdir())


def test_existing_file_is_kept(cfg, checkpoint, tmp_path):
    out = tmp_path / 'model.pt2'
    beside = tmp_path / 'model.pt2.json'
    beside.write_text('mine')
    with pytest.raises(FileExistsError, match='--force'):
        export_model(cfg, checkpoint, out, shape=(32, 32))
    assert beside.read_text() == 'mine' and not out.exists()


def test_files_that_cannot_be_written(cfg, tmp_path):
    """The export, which takes minutes, does not begin."""
    settings = dict(shape=(32, 32), force=True)
    with pytest.raises(FileNotFoundError, match='the folder .*none does not exist'):
        export_model(None, None, tmp_path / 'none/model.onnx', **settings)
    (tmp_path / 'model.pt2.json').mkdir()
    with pytest.raises(IsADirectoryError, match=r'pt2\.json is a folder'):
        export_model(None, None, tmp_path / 'model.pt2', **settings)


def test_models_that_fail_at_a_shape():
    class Large(Doubled):
        def forward(self, image):
            return (nn.functional.conv2d(image, torch.ones(1, 3, 9, 9)),)

    metadata = Metadata(task='features', inputs=['image'], outputs=[], shape=[8, 9])
    with pytest.raises(ExportError, match='fixed sizes: .*[Kk]ernel size'):
        export_graph(Large(), metadata, FORMATS['onnx'])


class Doubled(nn.Module):
    task, input_names, output_names = 'features', ('image',), ('map',)

    def forward(self, image):
        return (2 * image,)


@pytest.mark.parametrize(
    'dynamic, wrong_at',
    [(None, None), ('batch', 1), ('batch', 3), ('size', (97, 115)), ('size', (32, 83))],
)
def test_other_sizes_are_tried(dynamic, wrong_at):
    """An error of 1e-4 at another batch or size than the example's is refused."""
    seen = []

    def run(image):
        seen.append(tuple(image.shape))
        wrong = wrong_at in (len(image), tuple(image.shape[2:]))
        return [2 * image * np.float32(1 + 1e-4 * wrong)]

    metadata = Metadata('features', ['image'], [], [60, 96], dynamic=dynamic)
    format = fake_format(replace(metadata, outputs=['map']), run)
    if wrong_at is None:
        export_graph(Doubled(), metadata, format)
        assert not seen
    else:
        with pytest.raises(ExportError, match=r'by 1\.\de-04 of .* images of shape'):
            export_graph(Doubled(), metadata, format)


def test_failures_leave_nothing(cfg, checkpoint, tmp_path, monkeypatch):
    described = Metadata('classification', ['image'], ['scores'], [32, 32])
    fake = fake_format(described, None, bytes(1 << 20))
    monkeypatch.setitem(FORMATS, 'onnx', fake)
    out = tmp_path / 'model.onnx'
    out.write_bytes(b'before')
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old[1]))
    try:
        with pytest.raises(OSError, match='previous content is untouched.*model'):
            export_model(cfg, checkpoint, out, shape=(32, 32), force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    fake.runner = lambda _: Runner(lambda x: [np.full((1, 5), 0.2, 'f')], described)
    with pytest.raises(ExportError, match='differs from PyTorch'):
        images = [torch.randn(1, 3, 32, 32)]
        export_model(cfg, checkpoint, out, shape=(32, 32), force=True, verify=images)
    assert [path.name for path in tmp_path.iterdir()] == ['model.onnx']
    assert out.read_bytes() == b'before'
