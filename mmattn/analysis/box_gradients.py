"""Find the pixels that a DETR's boxes and classes depend on.

Figure 5 of "Deformable DETR" (https://arxiv.org/abs/2010.04159) shows these norms.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmattn.errors import UserError

from .one_image import check_one_image

ITEMS = 'x', 'y', 'width', 'height', 'class'


@dataclass(frozen=True)
class BoxGradients:
    """The gradients of one query of the last decoder layer.

    Attributes:
        query, label, score: index of the query, its best class and its probability.
        box: left, top, right and bottom, in pixels.
        norms: shape (5, H, W), the L2 norms over the image's channels of the gradients
            of `ITEMS`: the middle, the width and the height of the box, each in 0..1,
            and the class's probability.
    """

    query: int
    label: int
    score: float
    box: tuple[float, float, float, float]
    norms: Tensor


def box_gradients(
    detector: nn.Module, image: Tensor, samples: list | None = None, *, count: int = 1
) -> list[BoxGradients]:
    """Return the gradients of the queries with the highest scores, best first.

    References that a detector detaches, as iterative refinement does between layers,
    count as constants.

    Args:
        detector: a `DeformableDETR` or another DETR of mmdet, in its current mode. Its
            tensor mode returns class logits (layers, 1, Q, K) and boxes
            (layers, 1, Q, 4), whose classes have a sigmoid.
        image: shape (1, 3, H, W), normalized.
        samples: the image's sample, which detectors of mmdet require.
        count: number of queries.

    Raises:
        ValueError: `image` has another shape, `count` is not in 1..Q, or the detector
            returns something else.
    """
    check_one_image(image)
    image = image.detach().requires_grad_()
    with torch.enable_grad():
        outputs = detector(image, samples, mode='tensor')
        logits, boxes = _last_layer(detector, outputs)
        scores, labels = logits.sigmoid().max(dim=-1)
    if not 1 <= count <= len(scores):
        raise UserError(f'count must be between 1 and {len(scores)}, got {count}')
    found = []
    for query in scores.topk(count).indices.tolist():
        items = *boxes[query], scores[query]
        gradients = [torch.autograd.grad(v, image, retain_graph=True)[0] for v in items]
        norms = torch.cat(gradients).norm(dim=1)  # (5, H, W)
        label, score = int(labels[query]), float(scores[query].detach())
        box = _in_pixels(boxes[query].tolist(), *image.shape[2:])
        found.append(BoxGradients(query, label, score, box, norms))
    return found


def _last_layer(detector: nn.Module, outputs) -> tuple[Tensor, Tensor]:
    """Return logits (Q, K) and boxes (Q, 4) of the last layer."""
    found = isinstance(outputs, tuple) and len(outputs) == 2
    tensors = found and all(isinstance(each, Tensor) for each in outputs)
    if not tensors or any(each.dim() != 4 for each in outputs):
        raise UserError(
            'the detector must be a DETR, whose tensor mode returns logits and boxes '
            f'of each layer, got {type(detector).__name__}'
        )
    logits, boxes = outputs
    return logits[-1, 0], boxes[-1, 0]


def _in_pixels(box: list[float], H: int, W: int) -> tuple[float, float, float, float]:
    x, y, w, h = box
    left, top = (x - w / 2) * W, (y - h / 2) * H
    return left, top, left + w * W, top + h * H
