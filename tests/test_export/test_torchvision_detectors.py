"""Graphs of torchvision's detectors equal its predictions."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from small_detectors import EXPORTS, check_detections
from small_torchvision import CLASSES, IMAGES, MODELS, detector, predict
from torch import nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.transform import GeneralizedRCNNTransform

import mmattn.export
from mmattn.export import Metadata, export_model
from mmattn.export.graphs import graph_of
from mmattn.export.inputs import prepare, stack
from mmattn.export.torchvision_models import preparation
from mmattn.images import read_image


@torch.no_grad()
def check_equals_torchvision(graph, model, image, image_size) -> list[int]:
    """Compare a graph's outputs with torchvision's predictions, and count these."""
    found = graph(image, image_size)
    return check_detections(found, predict(model, image, image_size))


@pytest.mark.parametrize('name', MODELS)
def test_detections_equal_torchvision(name):
    model = detector(name)
    counts = check_equals_torchvision(graph_of(model), model, *IMAGES)
    assert min(counts) > 3, 'the images have few objects'


@pytest.mark.parametrize('name', ['mask_rcnn', 'retinanet'])
def test_few_and_no_detections(name):
    model = detector(name)
    owner = getattr(model, 'roi_heads', model)
    scores = torch.cat([found[0][:, 4] for found in predict(model, *IMAGES)])
    owner.score_thresh = scores.sort(descending=True).values[2].item()
    assert sum(check_equals_torchvision(graph_of(model), model, *IMAGES)) == 2
    owner.score_thresh = 1
    assert check_equals_torchvision(graph_of(model), model, *IMAGES) == [0, 0]


def test_no_proposals():
    model = detector('mask_rcnn')
    model.rpn.score_thresh = 1
    assert check_equals_torchvision(graph_of(model), model, *IMAGES) == [0, 0]


@pytest.mark.parametrize(
    'settings',
    [
        dict(min_size=130, max_size=160),
        dict(min_size=(200, 150), max_size=1000),
        dict(min_size=160, max_size=100),
        dict(min_size=1, max_size=1, fixed_size=(70, 90), size_divisible=1),
    ],
    ids=['longer side', 'last of several', 'shorter than longer', 'fixed'],
)
def test_images_are_prepared_as_by_torchvision(settings):
    image = np.random.default_rng(0).integers(0, 256, (61, 97, 3), np.uint8)
    model = nn.Module()
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    model.transform = GeneralizedRCNNTransform(
        image_mean=mean, image_std=std, **settings
    )
    expected, _ = model.transform.eval()([torch.tensor(image).permute(2, 0, 1) / 255])
    shape = list(expected.tensors.shape[2:])
    metadata = Metadata(
        'detection', ['image', 'image_size'], [], shape, **preparation(model)
    )
    metadata.outputs = ['dets', 'labels']
    metadata.check()
    prepared = prepare(image, metadata)
    assert expected.image_sizes == [prepared.size]
    batch = torch.from_numpy(stack([prepared], metadata))
    torch.testing.assert_close(batch, expected.tensors, rtol=0, atol=5e-4)


def test_what_is_refused(tmp_path):
    def refused(message, *args, **settings):
        with pytest.raises(ValueError, match=message):
            export_model(*args, tmp_path / 'a.onnx', shape=(64, 64), **settings)

    model = detector('retinanet')
    refused('`checkpoint` and `cfg_options` are for configs', model, 'weights.pth')
    refused(
        'uint8.*torchvision resizes', model, None, input_dtype='uint8', normalize=True
    )
    refused('Linear is neither a config nor', nn.Linear(1, 1), None)
    refused('`classes` is for torchvision', Config(), None, classes=['a'])
    model.anchor_generator = nn.Identity()
    refused('RetinaNet: `anchor_generator` must be AnchorGenerator itself', model, None)
    model.__class__ = type('Other', (RetinaNet,), {})
    refused('Other cannot be exported', model, None)
    model = detector('mask_rcnn')
    model.roi_heads.mask_roi_pool = nn.Identity()
    refused('RoIHeads: `mask_roi_pool` must be MultiScaleRoIAlign', model, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, run',
    [
        ('faster_rcnn', 'onnx'),
        ('mask_rcnn', 'torch.export'),
        ('retinanet', 'onnx'),
        ('fcos', 'onnx'),
        ('ssd', 'torch.export'),
    ],
)
def test_exports_equal_torchvision(name, run):
    model = detector(name)
    graph = EXPORTS[run](graph_of(model), IMAGES)
    assert min(check_equals_torchvision(graph, model, *IMAGES)) > 3
    images = IMAGES[0].flip(0), torch.tensor([[64, 160], [128, 100]])
    check_equals_torchvision(graph, model, *images)


@pytest.fixture(scope='module')
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp('photo') / 'astronaut.png'
    skimage = pytest.importorskip('skimage')
    Image.fromarray(skimage.data.astronaut()[:375, :500]).save(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mask_rcnn', 'ssd'])
def test_files_predict_as_torchvision(name, photo, tmp_path):
    """Sizes are rounded down, and pixels are not rounded, as torchvision does."""
    model = detector(name)
    if name == 'mask_rcnn':
        model.transform.min_size, model.transform.max_size = (130,), 160
    said, file = [], tmp_path / 'model.onnx'
    names = ['background', *map(str, range(1, CLASSES))]
    export_model(
        model,
        None,
        file,
        shape=(128, 160),
        verify=photo,
        classes=names,
        say=said.append,
    )
    assert 'boxes differ by at most' in said[1]
    found = mmattn.export.load(file)(photo)
    image = torch.tensor(read_image(photo)).permute(2, 0, 1) / 255
    with torch.no_grad():
        (expected,) = model([image])
    assert len(found) == len(expected['scores']) > 3
    assert found.names == [names[i] for i in expected['labels']]
    torch.testing.assert_close(
        torch.tensor(found.boxes), expected['boxes'], rtol=1e-3, atol=1e-2
    )
    assert (found.masks is None) == ('masks' not in expected)


@pytest.mark.slow
def test_example_of_the_page(photo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(photo, 'image.jpg')
    page = (Path(mmattn.__file__).parents[1] / 'docs/export.md').read_text()
    (block,) = re.findall(r'^```python\n(from torchvision.*?)^```$', page, re.M | re.S)
    exec(block, {})
    assert mmattn.export.load('detector.onnx').metadata.shape == [256, 320]
