"""Scores of an image classifier."""

from mmpretrain.models.heads import ClsHead
from torch import Tensor, nn

from ..errors import ExportError


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
        kind = type(model.head)
        for name in ('predict', '_get_predictions'):
            if getattr(kind, name, None) is not getattr(ClsHead, name):
                raise ExportError(
                    f'the head {kind.__name__} cannot be exported, since it does not '
                    'predict as ClsHead of mmpretrain does'
                )
        self.backbone = model.backbone
        self.neck = model.neck
        self.head = model.head

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = self.backbone(image)
        if self.neck is not None:
            features = self.neck(features)
        return (self.head(features).softmax(1),)
