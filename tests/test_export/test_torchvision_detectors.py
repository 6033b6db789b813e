"""Graphs of torchvision's detectors equal its predictions."""

import copy
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from small_detectors import EXPORTS, Spread, check_detections
from small_torchvision import CLASSES, IMAGES, MODELS, SCORES, Blobs, detector, predict
from torch import nn
from torchvision.models import detection, get_model, list_models
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import GeneralizedRCNNTransform

import mmattn.export
from mmattn.export import Metadata, export_model
from mmattn.export.comparison import compare
from mmattn.export.graphs import graph_of
from mmattn.export.graphs.torchvision_detectors import feature_maps, grid_anchors
from mmattn.export.inputs import prepare, stack
from mmattn.export.runner import Runner
from mmattn.export.torchvision_model import TorchvisionModel, preparation
from mmattn.images import read_image


@torch.no_grad()
def check_equals_torchvision(graph, model, image, image_size) -> list[int]:
    """Compare a graph's outputs with torchvision's predictions, and count these."""
    # The graph and torchvision would share what the poolers learn.
    expected = predict(copy.deepcopy(model), image, image_size)
    return check_detections(graph(image, image_size), expected)


@pytest.mark.parametrize('name', MODELS)
def test_detections_equal_torchvision(name):
    model = detector(name)
    counts = check_equals_torchvision(graph_of(model), model, *IMAGES)
    assert min(counts) > 3, 'the images have few objects'


def test_anchors_of_maps_whose_strides_differ():
    """Height and width of a map are rounded up by themselves."""
    generator = AnchorGenerator(((8, 12), (24, 32)), ((0.5, 1.0),) * 2)
    image = torch.zeros(1, 3, 33, 40)
    maps = torch.zeros(1, 1, 5, 5), torch.zeros(1, 1, 2, 3)
    (expected,) = generator(ImageList(image, [(33, 40)]), maps)
    assert torch.equal(torch.cat(grid_anchors(generator, image, maps)), expected)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mask_rcnn', 'retinanet'])
def test_few_and_no_detections(name):
    model = detector(name)
    owner = getattr(model, 'roi_heads', model)
    scores = torch.cat([found[0][:, 4] for found in predict(model, *IMAGES)])
    owner.score_thresh = scores.sort(descending=True).values[2].item()
    assert sum(check_equals_torchvision(graph_of(model), model, *IMAGES)) == 2
    owner.score_thresh = 1
    assert check_equals_torchvision(graph_of(model), model, *IMAGES) == [0, 0]


@pytest.mark.slow
@torch.no_grad()
def test_few_and_no_proposals():
    model = detector('mask_rcnn')
    graph, image = graph_of(model), IMAGES[0][:1]
    logits, _ = model.rpn.head(list(feature_maps(model, image).values()))
    best = torch.cat([level.flatten() for level in logits]).sigmoid().max()
    model.rpn.score_thresh = best.item()
    sizes = IMAGES[1][:1]
    assert check_equals_torchvision(graph, model, image, sizes)[0] > 0
    model.rpn.score_thresh = 1
    assert check_equals_torchvision(graph, model, *IMAGES) == [0, 0]


@pytest.mark.slow
def test_boxes_without_area_are_left_out():
    """Proposals of an anchor, and objects of a class, are narrower than is accepted.

    Objects of another class are a little wider.
    """
    model = detector('mask_rcnn')
    graph = graph_of(model)
    model.rpn.head.bbox_pred.bias.data[2] = -12
    widths = model.roi_heads.box_predictor.bbox_pred.bias.data[2::4]
    widths[1:3] = torch.tensor([-10, -7]) * 5
    assert min(check_equals_torchvision(graph, model, *IMAGES)) > 0
    labels = torch.cat([labels for _, labels, _ in predict(model, *IMAGES)])
    assert labels.unique().tolist() == [2, 3]


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
    # A dynamic size comes from the settings, and not from the graph.
    settings = dict(dynamic='size', **preparation(model))
    ends = ['image', 'image_size'], ['dets', 'labels']
    metadata = Metadata('detection', *ends, shape, **settings)
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
    model.anchor_generator.__class__ = type('Part', (AnchorGenerator,), {})
    refused('Part cannot be exported; accepted are AnchorGenerator', model, None)
    model.__class__ = type('Other', (RetinaNet,), {})
    refused('Other cannot be exported', model, None)
    model = detector('mask_rcnn')
    model.roi_heads.mask_roi_pool = nn.Identity()
    refused('Identity cannot be exported; accepted are MultiScaleRoIAlign', model, None)
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


@pytest.mark.parametrize('name', ['mask_rcnn', 'ssd'])
@torch.no_grad()
def test_images_are_predicted_as_by_torchvision(name, photo):
    """Sizes are rounded down, pixels are not rounded, and masks differ at borders."""
    model = detector(name)
    if name == 'mask_rcnn':
        model.transform.min_size, model.transform.max_size = (130,), 160
        model.roi_heads.mask_predictor = Blobs()
    graph, names = graph_of(model), ['background', *map(str, range(1, CLASSES))]
    source = TorchvisionModel(model, names)
    ends = [*graph.input_names], [*graph.output_names]
    entries = source.entries | getattr(graph, 'metadata', {})
    metadata = Metadata(graph.task, *ends, [128, 160], **entries)

    def run(*inputs):
        return [out.numpy() for out in graph(*map(torch.from_numpy, inputs))]

    runner = Runner(run, metadata)
    found = compare(runner, source.predictions(source.given([photo])))
    assert found.same.images == 1
    found.check()
    found = runner(photo)
    image = torch.tensor(read_image(photo)).permute(2, 0, 1) / 255
    (expected,) = model([image])
    assert len(found) == len(expected['scores']) > 3
    assert found.names == [names[i] for i in expected['labels']]
    torch.testing.assert_close(
        torch.tensor(found.boxes), expected['boxes'], rtol=1e-3, atol=1e-2
    )
    if name == 'ssd':
        assert found.masks is None
        return
    assert metadata.mask_threshold == 0.5
    masks = expected['masks'][:, 0].numpy() >= 0.5
    # torchvision rounds boxes before it pastes masks, which thin ones show.
    wide = (found.boxes[:, 2:] - found.boxes[:, :2]).min(1) >= 16
    assert wide.sum() > 3
    for mask, other in zip(
        found.masks[wide], masks[wide].astype(np.uint8), strict=True
    ):
        assert (cv2.erode(other, np.ones((3, 3))) <= mask).all()
        assert (cv2.dilate(other, np.ones((3, 3))) >= mask).all()
        assert (mask & other).sum() > 0.9 * (mask | other).sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    'name', [name for name in list_models(detection) if 'keypoint' not in name]
)
@torch.no_grad()
def test_ready_made_detectors(name, photo, tmp_path):
    """Export torchvision's detectors, with random weights that find objects."""
    # With 0, objects of one of them have nearly equal scores, which rounding reorders.
    torch.manual_seed(1)
    size = {} if 'ssd' in name else dict(min_size=320, max_size=480)
    model = get_model(name, weights=None, weights_backbone=None, **size)
    image = torch.tensor(read_image(photo)).permute(2, 0, 1) / 255
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # it takes the statistics of the two images
    batch, _ = model.transform([image, image.flip(-1)])
    model.backbone(batch.tensors)
    for key, layer in model.eval().named_modules():
        if key.endswith(SCORES):
            layer.register_forward_hook(Spread(1.5))
    model([image])
    shape, said = model.transform([image])[0].tensors.shape[-2:], []
    settings = dict(shape=tuple(shape), verify=photo, say=said.append)
    names = [*map(str, range(91))]
    export_model(model, None, tmp_path / 'model.onnx', **settings, classes=names)
    assert mmattn.export.load(tmp_path / 'model.onnx').metadata.classes == names
    assert int(re.search(r'(\d+) objects in PyTorch', said[1])[1]) >= 100


@pytest.mark.slow
def test_example_of_the_page(photo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(photo, 'image.jpg')
    page = (Path(mmattn.__file__).parents[1] / 'docs/export.md').read_text()
    (block,) = re.findall(r'^```python\n(from torchvision.*?)^```$', page, re.M | re.S)
    exec(block, {})
    assert mmattn.export.load('detector.onnx').metadata.shape == [256, 320]
