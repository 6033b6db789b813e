"""Graphs that are exported: one module for each kind of model."""

from importlib import import_module

from torch import nn

from ..errors import ExportError

# Classes are compared exactly: a subclass may predict in another way.
GRAPHS = {
    'mmpretrain.models.classifiers.image.ImageClassifier': ('classifier', 'Classifier'),
    'mmattn.models.classifiers.distilled.DistilledClassifier': (
        'classifier',
        'Classifier',
    ),
    'mmseg.models.segmentors.encoder_decoder.EncoderDecoder': (
        'segmentor',
        'Segmentor',
    ),
    'mmattn.models.detectors.deformable_detr.DeformableDETR': (
        'detr',
        'DeformableDETR',
    ),
    'mmdet.models.detectors.deformable_detr.DeformableDETR': ('detr', 'DeformableDETR'),
}
DETECTORS = {
    'dense_detector.DenseDetector': ('retinanet.RetinaNet', 'atss.ATSS', 'gfl.GFL'),
    'roi_detector.RoIDetector': (
        'faster_rcnn.FasterRCNN',
        'mask_rcnn.MaskRCNN',
        'cascade_rcnn.CascadeRCNN',
    ),
}
GRAPHS |= {
    f'mmdet.models.detectors.{model}': tuple(graph.split('.'))
    for graph, models in DETECTORS.items()
    for model in models
}
# Decode heads that segment in their own way.
HEADS = {
    'mmseg.models.decode_heads.mask2former_head.Mask2FormerHead': (
        'mask2former',
        'Mask2Former',
    ),
}
PARTS = ('model', 'backbone')


def graph_of(model: nn.Module, part: str = 'model', **settings) -> nn.Module:
    """Return the module to export for a model, in evaluation mode.

    Args:
        model: a built model of mmdet, mmseg or mmpretrain.
        part: 'model' for all of it, 'backbone' for the feature maps.
        settings: arguments of the graph beside the model, such as `output` of a
            segmentor.

    Raises:
        ExportError: the model or a setting of it cannot be exported.
        ValueError: another `part`.
    """
    if part not in PARTS:
        raise ValueError(f'`part` must be one of {PARTS}, got {part!r}')
    kind = _class_name(model)
    if part == 'backbone':
        if not hasattr(model, 'backbone'):
            raise ExportError(f'{kind} has no backbone to export')
        model, found = model.backbone, ('backbone', 'Backbone')
    elif kind in GRAPHS:
        head = _class_name(getattr(model, 'decode_head', None))
        found = HEADS.get(head, GRAPHS[kind])
    else:
        raise ExportError(
            f'{kind} cannot be exported; the models that can be are '
            f'{", ".join(GRAPHS)}. `part="backbone"` exports its backbone alone'
        )
    module, name = found
    graph = getattr(import_module(f'.{module}', __name__), name)
    return graph(model.eval(), **settings).eval()


def _class_name(module: nn.Module | None) -> str:
    return f'{type(module).__module__}.{type(module).__qualname__}'
