"""Graphs that are exported: one module for each kind of model."""

from importlib import import_module

from torch import nn

from mmattn.errors import UserError, check_choice

from ..choices import PARTS
from ..errors import ExportError

# The models of each graph. Classes are compared exactly: a subclass may predict in
# another way.
MODELS = {
    'classifier.Classifier': (
        'mmattn.models.classifiers.distilled.DistilledClassifier',
        'mmpretrain.models.classifiers.image.ImageClassifier',
    ),
    'segmentor.Segmentor': ('mmseg.models.segmentors.encoder_decoder.EncoderDecoder',),
    'detr.DeformableDETR': (
        'mmattn.models.detectors.deformable_detr.DeformableDETR',
        'mmdet.models.detectors.deformable_detr.DeformableDETR',
    ),
    'dense_detector.DenseDetector': (
        'mmdet.models.detectors.atss.ATSS',
        'mmdet.models.detectors.gfl.GFL',
        'mmdet.models.detectors.retinanet.RetinaNet',
    ),
    'roi_detector.RoIDetector': (
        'mmdet.models.detectors.cascade_rcnn.CascadeRCNN',
        'mmdet.models.detectors.faster_rcnn.FasterRCNN',
        'mmdet.models.detectors.mask_rcnn.MaskRCNN',
    ),
    'torchvision_detectors.Dense': (
        'torchvision.models.detection.fcos.FCOS',
        'torchvision.models.detection.retinanet.RetinaNet',
        'torchvision.models.detection.ssd.SSD',
    ),
    'torchvision_detectors.RCNN': (
        'torchvision.models.detection.faster_rcnn.FasterRCNN',
        'torchvision.models.detection.mask_rcnn.MaskRCNN',
    ),
}
GRAPHS = {model: graph for graph, models in MODELS.items() for model in models}
# Graphs of decode heads that segment in their own way.
HEADS = {
    'mmseg.models.decode_heads.mask2former_head.Mask2FormerHead': (
        'segmentor.Mask2Former'
    ),
}


def graph_of(model: nn.Module, part: str = 'model', **settings) -> nn.Module:
    """Return the module to export for a model, in evaluation mode.

    Args:
        model: a built model of mmdet, mmseg or mmpretrain, or a detector of
            torchvision.
        part: 'model' for all of it, 'backbone' for the feature maps.
        settings: arguments of the graph besides the model, such as `output` of a
            segmentor.

    Raises:
        ExportError: the model or a setting of it cannot be exported.
        ValueError: another `part`, or settings of another graph.
    """
    check_choice('`part`', part, PARTS)
    kind = _class_name(model)
    if part == 'backbone':
        if not hasattr(model, 'backbone'):
            raise ExportError(f'{kind} has no backbone to export')
        model, found = model.backbone, 'backbone.Backbone'
    elif kind in GRAPHS:
        head = _class_name(getattr(model, 'decode_head', None))
        found = HEADS.get(head, GRAPHS[kind])
    else:
        raise ExportError(
            f'{kind} cannot be exported; the models that can be are '
            f'{", ".join(GRAPHS)}. `part="backbone"` exports only its backbone'
        )
    module, _, name = found.partition('.')
    graph = getattr(import_module(f'.{module}', __name__), name)
    if settings and graph.task != 'segmentation':
        raise UserError(f'{", ".join(settings)} is for segmentors, got {kind}')
    return graph(model.eval(), **settings).eval()


def _class_name(module: nn.Module | None) -> str:
    return f'{type(module).__module__}.{type(module).__qualname__}'
