"""Scores of an image classifier."""

from mmpretrain.models.heads import ClsHead
from torch import Tensor, nn

from .parts import check_methods


class Classifier(nn.Module):
    """Return the probability of each class, shape (B, classes).

    Args:
        model: an `ImageClassifier` of mmpretrain or a `DistilledClassifier` of ours.

    Raises:
        ExportError: the head does not take the softmax of its scores as `ClsHead` does.
    """

    task = 'classification'
    input_names = ('image',)
    output_names = ('scores',)

    def __init__(self, model: nn.Module):
        super().__init__()
        check_methods(model.head, ClsHead, 'predict', '_get_predictions')
        self.backbone = model.backbone
        self.neck = model.neck
        self.head = model.head

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = self.backbone(image)
        if self.neck is not None:
            features = self.neck(features)
        return (self.head(features).softmax(1),)
