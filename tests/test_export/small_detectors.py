"""Detectors of our configs, small enough for tests, and what mmdet predicts."""

import copy
import io
from pathlib import Path

import torch
from export_checks import OnnxSession
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
CLASSES = 3
LIMIT = 20
RESNET = dict(type='mmdet.ResNet', depth=18, base_channels=8)
RESNET |= dict(norm_cfg=dict(type='BN'), norm_eval=True)
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = (
    torch.randn(2, 3, 64, 97, generator=GENERATOR),
    torch.tensor([[64, 97], [51, 80]]),
)
"""Two images, of which one is padded."""
SMALLER = (
    torch.randn(2, 3, 64, 97, generator=GENERATOR),
    torch.tensor([[40, 97], [64, 30]]),
)
PREDICTIONS = '_cls', '_reg', 'atss_centerness', 'conv_logits'
SIZES = {256: 32, 1024: 64, 80: CLASSES, 1000: 150, 100: LIMIT}


def shrunk(config):
    """Return a config with fewer channels, classes, candidates and detections."""
    if isinstance(config, dict):
        if config.get('type') == 'SyncBN':
            config = dict(config, type='BN')
        return {key: shrunk(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [shrunk(value) for value in config]
    return SIZES.get(config, config) if isinstance(config, int) else config


@torch.no_grad()
def detector(name: str, **changes) -> nn.Module:
    """Build a detector with random weights that finds objects.

    Args:
        name: a file of `configs/_base_/models`.
        changes: merged into the config of the model.
    """
    init_default_scope('mmdet')
    config = Config.fromfile(ROOT / f'configs/_base_/models/{name}.py').model.to_dict()
    config = Config(dict(model=shrunk(config)))
    config.merge_from_dict(
        dict(model=dict(backbone=RESNET, neck=dict(in_channels=[8, 16, 32, 64])))
    )
    config.merge_from_dict(dict(model=changes))
    torch.manual_seed(0)
    model = MODELS.build(copy.deepcopy(config.model))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity='relu')
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and name.endswith(PREDICTIONS):
            layer.bias.data[:] = 0
            layer.register_forward_hook(Spread(1.5 if 'cls' in name else 0.5))
    model.eval()
    predict(model, *IMAGES)
    return model


class Spread:
    """Scale the weights of a layer in its first call, so that its output has a spread.

    Scores near 0 or 1 have many ties, which PyTorch orders arbitrarily.
    """

    def __init__(self, deviation: float):
        self.deviation = deviation

    def __call__(self, layer, inputs, output):
        if self.deviation:
            layer.weight.data *= self.deviation / output.std()
            self.deviation = None
            return layer(*inputs)


def image_samples(image: Tensor, image_size: Tensor) -> list[DetDataSample]:
    """Return mmdet's descriptions of images with padding."""
    same = dict(scale_factor=(1.0, 1.0), batch_input_shape=tuple(image.shape[-2:]))
    return [
        DetDataSample(metainfo=dict(same, img_shape=size, ori_shape=size))
        for size in map(tuple, image_size.tolist())
    ]


def predict(model: nn.Module, image: Tensor, image_size: Tensor) -> list[list[Tensor]]:
    """Return boxes with scores, labels and mask probabilities that mmdet predicts."""
    samples = image_samples(image, image_size)
    found = []
    for i, sample in enumerate(model.predict(image, samples, rescale=False)):
        instances = sample.pred_instances
        dets = torch.cat([instances.bboxes, instances.scores[:, None]], 1)
        found.append([dets, instances.labels])
        if getattr(getattr(model, 'roi_head', None), 'with_mask', False):
            features = [x[i : i + 1] for x in model.extract_feat(image)]
            found[-1].append(
                masks_in_boxes(model.roi_head, features, dets[:, :4], instances.labels)
            )
    return found


@torch.no_grad()
def third_score(model: nn.Module) -> float:
    """Return the third highest score of the detections in `IMAGES`."""
    scores = torch.cat([found[0][:, 4] for found in predict(model, *IMAGES)])
    return scores.sort(descending=True).values[2].item()


def masks_in_boxes(head, features, boxes: Tensor, labels: Tensor) -> Tensor:
    """Return the probabilities that mmdet pastes into an image."""
    regions = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)
    if hasattr(head, 'num_stages'):
        stages = [
            head._mask_forward(stage, features, regions)
            for stage in range(head.num_stages)
        ]
        (last, *_) = head.mask_head
    else:
        stages, last = [head._mask_forward(features, regions)], head.mask_head
    masks = torch.stack([stage['mask_preds'].sigmoid() for stage in stages]).mean(0)
    labels = labels * (not last.class_agnostic)
    return masks[torch.arange(len(masks)), labels]


@torch.no_grad()
def check_equals_mmdet(export, model, image: Tensor, image_size: Tensor) -> list[int]:
    """Compare what an export of a model returns with mmdet's predictions.

    Returns:
        the number of detections in each image.
    """
    found = export(model)(image, image_size)
    return check_detections(found, predict(model, image, image_size))


def check_detections(found, predictions) -> list[int]:
    """Compare a graph's outputs with predictions by image, and return their counts."""
    counts = []
    for i, expected in enumerate(predictions):
        count = len(expected[0])
        counts.append(count)
        assert len(found) == len(expected)
        for actual, values in zip(found, expected, strict=True):
            assert actual.shape[:2] == (len(predictions), LIMIT)
            assert (actual[i, count:] == -1).all(), 'places are not empty'
            torch.testing.assert_close(actual[i, :count], values, rtol=1e-4, atol=1e-4)
    return counts


def check_few_and_none(export, model: nn.Module, config):
    """Compare with mmdet where two objects are found, and where none is."""
    config.score_thr = third_score(model)
    assert sum(check_equals_mmdet(export, model, *IMAGES)) == 2
    config.score_thr = 1
    assert check_equals_mmdet(export, model, *IMAGES) == [0, 0]


def check_exported(run: str, graph, model: nn.Module, config):
    """Compare with mmdet what one of `EXPORTS` returns, with and without objects."""
    program = EXPORTS[run](graph(model), IMAGES)
    for images in IMAGES, SMALLER:
        check_equals_mmdet(lambda _: program, model, *images)
    config.score_thr = 1
    program = EXPORTS[run](graph(model), IMAGES)
    assert check_equals_mmdet(lambda _: program, model, *IMAGES) == [0, 0]


def reload_program(graph, images):
    """Return the graph exported by torch.export, saved and loaded."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(graph, images), file)
    file.seek(0)
    return torch.export.load(file).module()


EXPORTS = {'torch.export': reload_program, 'onnx': OnnxSession}
