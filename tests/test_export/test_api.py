"""export_model: files, metadata, checkpoints, and refusals."""

import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmpretrain.structures import DataSample
from small_models import classifier_config
from torch import nn

import mmattn
from mmattn.export import ExportError, Metadata, export_model
from mmattn.export import api as module
from mmattn.export.metadata import KEY, PT2_FILE

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')
SHAPE = (37, 50)


@pytest.fixture(scope='module')
def cfg():
    return classifier_config()


@pytest.fixture(scope='module')
def checkpoint(cfg, tmp_path_factory):
    torch.manual_seed(0)
    model, _ = module.build_model(cfg, None)
    path = tmp_path_factory.mktemp('checkpoint') / 'model.pth'
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


@pytest.fixture(scope='module')
def onnx_file(cfg, checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp('export') / 'model.onnx'
    images = torch.randint(0, 256, (2, 3, *SHAPE)).to(torch.uint8)
    export_model(
        cfg,
        checkpoint,
        path,
        shape=SHAPE,
        dynamic='batch',
        normalize=True,
        input_dtype='uint8',
        verify=[images],
    )
    return path


def without_export(monkeypatch):
    """Replace the slow steps of an export by ones that do nothing."""
    monkeypatch.setattr(module, 'export_program', lambda *_: None)
    monkeypatch.setattr(module, 'first_output', lambda _: torch.empty(1, 5))
    monkeypatch.setattr(module, 'serialize', lambda *_: b'')


def predicted(cfg, checkpoint, images):
    """Return the scores of mmpretrain's own prediction for RGB images."""
    model, _ = module.build_model(cfg, checkpoint)
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
        check_no_path(module.export_graph(Pooled(), metadata, format)[0])


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
    ('.onnx', dict(shape=64), 'got 64'),
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


def test_checkpoint_of_another_model(checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r'does not match(.|\n)*head\.fc\.weight'):
        other = classifier_config(num_classes=6)
        export_model(other, checkpoint, tmp_path / 'model.onnx', shape=(32, 32))
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
        module.export_graph(Large(), metadata, 'onnx')


def test_difference_from_pytorch_is_refused(cfg, checkpoint, tmp_path, monkeypatch):
    def wrong(content, format):
        return lambda image: [torch.full((1, 5), 0.2)]

    monkeypatch.setattr(module, 'open_session', wrong)
    with pytest.raises(ExportError, match='differs from PyTorch'):
        export_model(
            cfg,
            checkpoint,
            tmp_path / 'model.onnx',
            shape=(32, 32),
            verify=[torch.randn(1, 3, 32, 32)],
        )
    assert not list(tmp_path.iterdir())


class Doubled(nn.Module):
    task, input_names, output_names = 'features', ('image',), ('map',)

    def forward(self, image):
        return (2 * image,)


@pytest.mark.parametrize(
    'dynamic, wrong_at',
    [
        (None, None),
        ('batch', 1),
        ('batch', 3),
        ('size', (97, 115)),
        ('size', (32, 83)),
    ],
)
def test_other_sizes_are_tried(monkeypatch, dynamic, wrong_at):
    """An error of 1e-4 at another batch or size than the example's is refused."""
    seen = []

    def session(image):
        seen.append(tuple(image.shape))
        wrong = wrong_at in (len(image), tuple(image.shape[2:]))
        return [2 * image * (1 + 1e-4 * wrong)]

    without_export(monkeypatch)
    monkeypatch.setattr(module, 'described', lambda content, *_: content)
    monkeypatch.setattr(module, 'open_session', lambda *_: session)
    metadata = Metadata(
        task='features',
        inputs=['image'],
        outputs=[],
        shape=[60, 96],
        batch=1,
        dynamic=dynamic,
    )
    if wrong_at is None:
        module.export_graph(Doubled(), metadata, 'onnx')
        assert not seen
    else:
        with pytest.raises(ExportError, match=r'by 1\.0e-04 of .* images of shape'):
            module.export_graph(Doubled(), metadata, 'onnx')


def test_full_disk_leaves_nothing(cfg, checkpoint, tmp_path, monkeypatch):
    without_export(monkeypatch)
    monkeypatch.setattr(module, 'serialize', lambda *_: bytes(1 << 20))
    out = tmp_path / 'model.onnx'
    out.write_bytes(b'before')
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old[1]))
    try:
        with pytest.raises(OSError, match='previous content is untouched.*model'):
            export_model(cfg, checkpoint, out, shape=(32, 32), force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert [path.name for path in tmp_path.iterdir()] == ['model.onnx']
    assert out.read_bytes() == b'before'
