"""Results of models in the pixels of the original image, as plain arrays.

`mmattn.apis.Predictor` and `mmattn.export.load` return them. They require only numpy;
a conversion or a drawing says what it needs besides.
"""

from .classification import Classification
from .coco import CocoDocument, coco_document
from .detections import SCORE, Detections
from .segmentation import Segmentation

__all__ = [
    'SCORE',
    'Classification',
    'CocoDocument',
    'Detections',
    'Segmentation',
    'coco_document',
]
